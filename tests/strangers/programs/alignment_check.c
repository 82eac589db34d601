// asks: may a program that runs with alignment checks (AC) be hit, and is an unaligned access its own SIGBUS
// still? (HIT_1, HIT_9) short
#include "stranger.h"
#include <setjmp.h>

static sigjmp_buf back;

FUNCTION static void check_alignment(unsigned long flag) {
    __asm__ volatile("pushfq\n\tandq $~0x40000, (%%rsp)\n\torq %0, (%%rsp)\n\tpopfq" ::"r"(flag) : "memory", "cc");
}

static void handler(int signal) {
    check_alignment(0);
    siglongjmp(back, signal);
}

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    static char bytes[16] __attribute__((aligned(16)));
    on(SIGBUS, handler, 0);
    volatile int n = 0, caught = 0;
    for (volatile int i = 0; i < 20; i++) {
        if (sigsetjmp(back, 1)) {
            caught++;
            continue;
        }
        check_alignment(0x40000);
        n = work(n);
        if (i % 4 == 0) __asm__ volatile("movl %1, %%eax" ::"m"(n), "m"(*(int *)(bytes + 1)) : "eax");
        check_alignment(0);
    }
    printf("%d, %d caught\n", n, caught);
    calls(".", "work", 20);
    return 0;
}
