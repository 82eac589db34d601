/* A shared object with an indirect function: its resolver decides which code it stands for. */

static int twice(int x)
{
	return 2 * x;
}

static int (*resolve_twice(void))(int)
{
	return twice;
}

int indirect_twice(int x) __attribute__((ifunc("resolve_twice")));
