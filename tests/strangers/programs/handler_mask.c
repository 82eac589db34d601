// asks: may a handler leave every signal blocked, by what it writes into its ucontext, and may one of our
// five do so? (HIT_13, sigaction(2))
#include "stranger.h"
#include <ucontext.h>

static volatile int fired;

FUNCTION static int work(int n) { return n * 3 + 1; }

static void blocks(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    fired++;
    memset(&((ucontext_t *)context)->uc_sigmask, 0xff, 8);
}

int main(void) {
    static const int SIGNALS[] = {SIGUSR1, SIGTRAP, SIGFPE, SIGSEGV, SIGALRM};
    int sum = 0;
    for (int i = 0; i < 5; i++) {
        handle(SIGNALS[i], blocks, i % 2 ? SA_NODEFER : 0);
        raise(SIGNALS[i]);
        for (int n = 0; n < 20; n++) sum += work(n) + (getppid() == 0);
        sigset_t mask;
        CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
        printf("signal %d: fired %d, SIGUSR2 blocked %d, SIGFPE blocked %d\n", SIGNALS[i], fired, sigismember(&mask, SIGUSR2), sigismember(&mask, SIGFPE));
        sigemptyset(&mask);
        CHECK(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
    }
    printf("sum %d\n", sum);
    calls(".", "work", 100);
    calls("libc.so.6", "getppid", 100);
    show_state();
    return 0;
}
