// asks: does a signal frame that the program makes up lead where it says? (sigreturn(2), HIT_13)
#include "stranger.h"
#include <ucontext.h>

static volatile int arrived;
static char stack[65536] __attribute__((aligned(16)));
static ucontext_t saved;

FUNCTION static int work(int n) { return n + 1; }

__attribute__((noreturn)) static void elsewhere(int a, int b) {
    printf("arrived with %d, %d\n", a, work(b));
    arrived = 1;
    show_signals();
    exit(9);
}

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    memcpy(&saved, context, sizeof saved);
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    regs[REG_RIP] = (long)elsewhere;
    regs[REG_RSP] = (long)(stack + sizeof stack - 8);
    regs[REG_RDI] = 3;
    regs[REG_RSI] = 4;
    regs[REG_EFL] &= ~0x400l;
    sigaddset(&((ucontext_t *)context)->uc_sigmask, SIGUSR2);
    // The frame begins behind the return address, at the context.
    __asm__ volatile("movq %0, %%rsp\n\tmovl $15, %%eax\n\tsyscall" ::"r"(context) : "memory");
}

int main(void) {
    handle(SIGUSR1, handler, 0);
    raise(SIGUSR1);
    return 1;
}
