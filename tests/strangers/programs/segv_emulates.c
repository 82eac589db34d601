// asks: does a SIGSEGV handler that does the access itself and steps over it see the right pc, address and
// registers? (HIT_9)
#include "stranger.h"
#include <ucontext.h>

static long emulated, bad;
extern char load[], loaded[];

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal;
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (regs[REG_RIP] != (long)load || info->si_code != SEGV_MAPERR) bad++;
    regs[REG_RAX] = (long)info->si_addr * 2;
    regs[REG_RIP] = (long)loaded;
    emulated++;
}

FUNCTION static long fetch(long address) {
    long value;
    __asm__ volatile("load: movq (%1), %0\nloaded:" : "=a"(value) : "D"(address) : "memory");
    return value;
}

int main(void) {
    handle(SIGSEGV, handler, 0);
    long sum = 0;
    for (long i = 0; i < 200; i++) sum += fetch(16 + i);
    printf("%ld, %ld emulated, %ld bad\n", sum, emulated, bad);
    calls(".", "fetch", 200);
    calls(".", "handler", 200);
    show_state();
    return 0;
}
