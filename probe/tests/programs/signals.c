/* Says what the kernel tells of the signals that a probe lives on, too: actions, masks, and what was sent
   while it was blocked. */
#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t handled;

static void handler(int signal) { handled = signal; }

__attribute__((noinline)) void work(void) { __asm__ volatile("" : : : "memory"); }

int main(void) {
    const int signals[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGUSR1};
    for (int i = 0; i < 6; i++) {
        struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
        sigaddset(&action.sa_mask, SIGFPE);
        sigaction(signals[i], &action, NULL);
        work();
        sigaction(signals[i], NULL, &old);
        printf("%d: %d, flags %#x, FPE %d\n", signals[i], old.sa_handler == handler, (unsigned)old.sa_flags,
               sigismember(&old.sa_mask, SIGFPE));
        printf("%d: %d by signal\n", signals[i], signal(signals[i], handler) == handler);
        sigaction(signals[i], NULL, &old);
        printf("%d: %d, flags %#x\n", signals[i], old.sa_handler == handler, (unsigned)old.sa_flags);
    }
    const int kept[] = {SIGFPE, SIGILL};
    for (int i = 0; i < 2; i++) {
        sigset_t set, seen;
        sigemptyset(&set);
        sigaddset(&set, kept[i]);
        sigprocmask(SIG_BLOCK, &set, NULL);
        handled = 0;
        raise(kept[i]);
        work();
        sigprocmask(SIG_BLOCK, NULL, &seen);
        printf("%d: blocked %d, handled %d", kept[i], sigismember(&seen, kept[i]), (int)handled);
        int waited = 0;
        if (!handled) sigwait(&set, &waited);
        printf(", waited for %d\n", waited);
    }
    return 0;
}
