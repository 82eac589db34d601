/* Without a C library, for another word size: ends with 5 where its environment has nothing of a tracer's. */
static int begins(const char *text, const char *with) {
    while (*with && *text == *with) text++, with++;
    return !*with;
}

__attribute__((used)) static void run(char **stack) {
    int status = 5;
    for (char **entry = stack + *(long *)stack + 2; *entry; entry++)
        if (begins(*entry, "LD_PRELOAD=") || begins(*entry, "PROBE_TRACE_")) status = 6;
    __asm__ volatile("int $0x80" : : "a"(1), "b"(status));
}

__asm__(".globl _start\n_start: push %esp\n call run\n");
