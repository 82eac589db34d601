// asks: does a program that single-steps itself come through a probed function with the right result? (HIT_1,
// HIT_5)
#include "stranger.h"
#include <ucontext.h>

static volatile int steps;

FUNCTION static int work(int n) { return n * 5 + 1; }

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    if (++steps > 5000) ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100l;
}

FUNCTION static void step(unsigned long flag) {
    __asm__ volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\torq %0, (%%rsp)\n\tpopfq" ::"r"(flag) : "memory", "cc");
}

int main(void) {
    handle(SIGTRAP, handler, 0);
    int n = 0;
    for (int i = 0; i < 10; i++) {
        step(0x100);
        n = work(n) & 0xffff;
        step(0);
    }
    printf("%d, stepped %d\n", n, steps > 100 && steps < 5000);
    steps = 0;
    work(1);
    printf("after: %d steps\n", steps);
    calls(".", "work", 11);
    show_signals();
    return 0;
}
