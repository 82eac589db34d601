// asks: what does a bare rt_sigaction say of the five signals, and may it set them? (HIT_13, sigaction(2))
// documented * stdout,status,calls: probe/README.md: A system call `rt_sigaction` that it makes without libc shows our actions of SIGTRAP, SIGSEGV, SIGBUS, SIGFPE and SIGILL, and can take them away; then the next breakpoint ends it.
#include "stranger.h"

struct kernel_action { void *handler; unsigned long flags; void *restorer; unsigned long mask; };
FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    static const int signals[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (int i = 0; i < 5; i++) {
        struct kernel_action action = {0};
        CHECK(bare_call(SYS_rt_sigaction, signals[i], 0, (long)&action, 8) == 0);
        printf("%d: %s, flags %lx\n", signals[i], action.handler ? "handled" : "default", action.flags);
    }
    show_status("SigCgt");
    int n = 0;
    for (int i = 0; i < 20; i++) n = work(n), getppid();
    struct kernel_action ignore = {SIG_IGN, 0, NULL, 0};
    CHECK(bare_call(SYS_rt_sigaction, SIGTRAP, (long)&ignore, 0, 8) == 0);
    for (int i = 0; i < 20; i++) n = work(n), getppid();
    printf("%d\n", n);
    calls(".", "work", 40);
    return 0;
}
