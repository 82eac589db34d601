// asks: is an alternate stack with SS_AUTODISARM disarmed in its handlers, and armed behind them, also where
// they switch contexts and hit probes? (HIT_13, sigaltstack(2))
#include "stranger.h"
#include <ucontext.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

static char other[65536] __attribute__((aligned(16))), third[65536] __attribute__((aligned(16)));
static ucontext_t inside, away;
static int fired, nested;

FUNCTION static int work(int n) { return n * 5 + 1; }

static void elsewhere(void) {
    stack_t stack;
    sigaltstack(NULL, &stack);
    printf("in a context: flags %x\n", (unsigned)stack.ss_flags);
    // May come as the alternate stack is disarmed while the first handler waits.
    if (nested++ == 0) raise(SIGUSR2);
    for (int i = 0; i < 20; i++) work(i);
}

static void handler(int signal) {
    char here;
    stack_t stack;
    sigaltstack(NULL, &stack);
    printf("signal %d: on it %d, flags %x, size %zu\n", signal, &here >= other && &here < other + sizeof other,
           (unsigned)stack.ss_flags, stack.ss_size);
    fired++;
    if (signal != SIGUSR1) return;
    getcontext(&away);
    away.uc_stack.ss_sp = third;
    away.uc_stack.ss_size = sizeof third;
    away.uc_link = &inside;
    makecontext(&away, elsewhere, 0);
    CHECK(swapcontext(&inside, &away) == 0);
}

int main(void) {
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other, .ss_flags = (int)SS_AUTODISARM};
    if (sigaltstack(&stack, NULL) != 0) SKIP("SS_AUTODISARM");
    on(SIGUSR1, handler, SA_ONSTACK);
    on(SIGUSR2, handler, SA_ONSTACK);
    for (int i = 0; i < 3; i++) {
        raise(SIGUSR1);
        for (int n = 0; n < 20; n++) work(n);
        CHECK(sigaltstack(NULL, &stack) == 0);
        printf("behind: flags %x, size %zu\n", (unsigned)stack.ss_flags, stack.ss_size);
    }
    printf("fired %d\n", fired);
    calls(".", "work", 120);
    show_state();
    return 0;
}
