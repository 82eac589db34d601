/* A program in which time passes between two places. */
#include <pthread.h>
#include <time.h>

#define KEPT __attribute__((noinline, noipa))

KEPT void first(int n) { __asm__ volatile("" : : "r"(n)); }
KEPT void second(int n) { __asm__ volatile("" : : "r"(n)); }

static void rest(void)
{
	struct timespec time = { 0, 3000000 };
	nanosleep(&time, NULL);
}

static void *other(void *unused)
{
	second(5);
	return unused;
}

int main(void)
{
	pthread_t thread;

	second(0); /* nothing has begun */
	first(1);
	rest();
	second(1);
	second(2); /* it has ended */
	first(3);
	rest();
	first(4); /* it begins anew */
	second(4);
	first(5);
	pthread_create(&thread, NULL, other, NULL); /* it has begun in another thread */
	pthread_join(thread, NULL);
	second(6);
	return 0;
}
