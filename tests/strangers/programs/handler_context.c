// asks: does what a handler writes into its ucontext (pc, registers, flags, x87 and SSE state) arrive, in and
// behind probed functions? (HIT_1, HIT_9, HIT_12, sigaction(2))
#include "stranger.h"
#include <ucontext.h>

extern char behind[], illegal_at[];

FUNCTION static long illegal(long n) {
    long answer = n;
    __asm__ volatile("illegal_at: ud2\nbehind: add $7, %0" : "+a"(answer) : : "rbx", "cc", "memory");
    return answer;
}

FUNCTION static double twice(double n) { return n * 2; }

static int codes[4], places;

static void at_illegal(int signal, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    places += (char *)at->uc_mcontext.gregs[REG_RIP] == illegal_at && (char *)info->si_addr == illegal_at;
    codes[0] = signal, codes[1] = info->si_code;
    at->uc_mcontext.gregs[REG_RIP] = (long)behind;
    at->uc_mcontext.gregs[REG_RAX] += 1000;
    at->uc_mcontext.gregs[REG_EFL] |= 1;
}

static void sets_rounding(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    // Toward zero, from here on.
    ((ucontext_t *)context)->uc_mcontext.fpregs->mxcsr |= 0x6000;
    twice(2.5);
}

int main(void) {
    handle(SIGILL, at_illegal, 0);
    handle(SIGUSR1, sets_rounding, 0);
    long sum = 0;
    for (int i = 0; i < 50; i++) sum += illegal(i) + (long)twice(i);
    printf("sum %ld, signal %d, code %d, right %d\n", sum, codes[0], codes[1], places);
    volatile double one = 1, ten = 10;
    printf("%a\n", one / ten);
    raise(SIGUSR1);
    volatile double rounded = one / ten;
    printf("%a\n", rounded);
    calls(".", "illegal", 50);
    calls(".", "twice", 51);
    return 0;
}
