// asks: does a stack that ends come to the handler on the program's alternate stack, and out of it by
// siglongjmp? (HIT_9)
// misses: yes
#include "stranger.h"
#include <setjmp.h>

static sigjmp_buf back;
static char other[65536] __attribute__((aligned(16)));

FUNCTION static int deep(int n) {
    volatile char room[4000];
    room[0] = (char)n;
    return n < 0 ? 0 : deep(n + 1) + room[0];
}

static void handler(int signal, siginfo_t *info, void *context) {
    (void)context;
    char here;
    siglongjmp(back, (signal == SIGSEGV && &here >= other && &here < other + sizeof other && info->si_code > 0) ? 1 : 2);
}

int main(void) {
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    CHECK(sigaltstack(&stack, NULL) == 0);
    handle(SIGSEGV, handler, SA_ONSTACK);
    volatile int times = 0;
    for (volatile int i = 0; i < 5; i++) {
        int got = sigsetjmp(back, 1);
        if (got == 0) deep(0);
        times += got;
    }
    printf("%d\n", times);
    calls(".", "handler", 5);
    show_state();
    return 0;
}
