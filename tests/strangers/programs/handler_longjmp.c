// asks: does siglongjmp out of handlers, a hundred times, lose no mask, stack or hit? (RET_7, HIT_12,
// sigsetjmp(3))
#include "stranger.h"
#include <setjmp.h>

static sigjmp_buf back;
static volatile int *volatile nowhere;

FUNCTION static int work(int n) { return n + 1; }

static void handler(int signal) { siglongjmp(back, work(signal)); }

int main(void) {
    on(SIGSEGV, handler, 0);
    on(SIGUSR1, handler, SA_ONSTACK);
    volatile int segv = 0, usr = 0;
    for (volatile int i = 0; i < 100; i++) {
        int got = sigsetjmp(back, 1);
        if (got == 0 && i % 2) *nowhere = 1;
        else if (got == 0) raise(SIGUSR1);
        else if (got == SIGSEGV + 1) segv++;
        else usr++;
    }
    printf("%d %d\n", segv, usr);
    calls(".", "work", 100);
    calls(".", "handler", 100);
    show_state();
    return 0;
}
