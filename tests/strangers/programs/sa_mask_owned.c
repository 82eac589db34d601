// asks: are the five signals that the tracer handles blocked in handlers whose sa_mask names them, shown
// there, and there behind them? (HIT_13, sigaction(2))
#include "stranger.h"

static const int SIGNALS[] = {SIGFPE, SIGILL, SIGTRAP, SIGSEGV, SIGBUS};
static volatile int inside, nested, after, current;

FUNCTION static int work(int n) { return n + 1; }

static void other(int signal) {
    (void)signal;
    inside ? nested++ : after++;
}

static void handler(int signal) {
    (void)signal;
    sigset_t mask;
    inside = 1;
    raise(current);
    for (int i = 0; i < 10; i++) work(i);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
    printf("%d blocked inside: %d\n", current, sigismember(&mask, current));
    inside = 0;
}

int main(void) {
    for (int i = 0; i < 5; i++) {
        current = SIGNALS[i];
        on(current, other, 0);
        struct sigaction action = {.sa_handler = handler};
        sigaddset(&action.sa_mask, current);
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        raise(SIGUSR1);
        printf("%d: %d inside, %d after\n", current, nested, after);
    }
    calls(".", "work", 50);
    return 0;
}
