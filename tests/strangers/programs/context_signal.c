// asks: may a handler leave by setcontext, and may contexts of four thousand bytes of stack be hit? (HIT_12,
// RET_7, makecontext(3))
#include "stranger.h"
#include <ucontext.h>

static ucontext_t back, small;
static volatile int left, sum;
static char stack[4096] __attribute__((aligned(64)));

FUNCTION static int work(int n) { return n * 7 + 3; }
FUNCTION static int raises(int n) {
    raise(SIGUSR1);
    return work(n);
}

static void handler(int signal) {
    (void)signal;
    left++;
    work(left);
    setcontext(&back);
}

static void body(void) {
    for (int i = 0; i < 30; i++) sum += work(i) & 15;
}

int main(void) {
    on(SIGUSR1, handler, SA_NODEFER);
    volatile int rounds = 0;
    CHECK(getcontext(&back) == 0);
    if (rounds++ < 50) raises(rounds);
    printf("left %d, rounds %d\n", left, rounds);
    sigset_t mask;
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
    show_set("blocked", &mask);
    for (int i = 0; i < 10; i++) {
        ucontext_t here;
        CHECK(getcontext(&small) == 0);
        small.uc_stack.ss_sp = stack;
        small.uc_stack.ss_size = sizeof stack;
        small.uc_link = &here;
        makecontext(&small, body, 0);
        CHECK(swapcontext(&here, &small) == 0);
    }
    printf("sum %d\n", sum);
    calls(".", "work", 350);
    return 0;
}
