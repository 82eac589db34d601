/* Without a C library, though it tells of an `errno` as one does, and without a thread pointer: `bare tell`
   makes many system calls and ends with 5; `bare` says "ready" and sleeps. */
static int number;
__attribute__((used)) int *__errno_location(void) { return &number; }

static long call(long which, long first, const void *second, long third) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(which), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
}

enum { WRITE = 1, PAUSE = 34, GETPID = 39, EXIT = 60 };

__attribute__((used)) static void run(const long *stack) {
    if (*stack == 1) {
        call(WRITE, 1, "ready\n", 6);
        for (;;) call(PAUSE, 0, 0, 0);
    }
    for (int n = 0; n < 1000; n++) call(GETPID, 0, 0, 0);
    call(EXIT, 5, 0, 0);
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call run\n");
