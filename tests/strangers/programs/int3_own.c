// asks: does an int3 of the program's own, and raise(SIGTRAP), come to its handler with the right pc and
// code? (HIT_5)
#include "stranger.h"
#include <ucontext.h>

extern char here[];
static volatile int right, code;

FUNCTION static int work(int n) { return n + 1; }

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal;
    right += ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] == (long)here;
    code = info->si_code;
    work(1);
}

FUNCTION static void stop(void) { __asm__ volatile("int3\nhere:" ::: "memory"); }

int main(void) {
    handle(SIGTRAP, handler, 0);
    for (int i = 0; i < 50; i++) stop();
    printf("%d right, code %d\n", right, code);
    raise(SIGTRAP);
    printf("%d right, code %d\n", right, code);
    calls(".", "work", 51);
    show_state();
    signal(SIGTRAP, SIG_IGN);
    raise(SIGTRAP);
    signal(SIGTRAP, SIG_DFL);
    fflush(stdout);
    stop();
    return 0;
}
