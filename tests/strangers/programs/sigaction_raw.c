// asks: what does a bare rt_sigaction say of the five signals, and may it set them? (HIT_13, sigaction(2))
#include "stranger.h"

struct kernel_action { void *handler; unsigned long flags; void *restorer; unsigned long mask; };
FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    static const int signals[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (int i = 0; i < 5; i++) {
        struct kernel_action action = {0};
        CHECK(syscall(SYS_rt_sigaction, signals[i], NULL, &action, 8) == 0);
        printf("%d: %s, flags %lx\n", signals[i], action.handler ? "handled" : "default", action.flags);
    }
    show_status("SigCgt");
    int n = 0;
    for (int i = 0; i < 20; i++) n = work(n), getppid();
    struct kernel_action ignore = {SIG_IGN, 0, NULL, 0};
    CHECK(syscall(SYS_rt_sigaction, SIGTRAP, &ignore, NULL, 8) == 0);
    for (int i = 0; i < 20; i++) n = work(n), getppid();
    printf("%d\n", n);
    calls(".", "work", 40);
    return 0;
}
