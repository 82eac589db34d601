// asks: does a handler with SA_ONSTACK run on the program's alternate stack, and one without on its own?
// (HIT_13, sigaltstack(2))
#include "stranger.h"

static char other[65536] __attribute__((aligned(16)));
static int fired, inside, flags;

static void handler(int signal) {
    (void)signal;
    char here;
    fired++;
    inside += &here >= other && &here < other + sizeof other;
    stack_t stack;
    sigaltstack(NULL, &stack);
    flags = stack.ss_flags;
}

int main(void) {
    on(SIGUSR1, handler, SA_ONSTACK);
    on(SIGUSR2, handler, 0);
    raise(SIGUSR1);
    printf("no stack: %d fired, %d inside, flags %d\n", fired, inside, flags);
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    CHECK(sigaltstack(&stack, NULL) == 0);
    raise(SIGUSR1);
    printf("with SA_ONSTACK: %d fired, %d inside, flags %d\n", fired, inside, flags);
    raise(SIGUSR2);
    printf("without: %d fired, %d inside, flags %d\n", fired, inside, flags);
    stack.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&stack, NULL) == 0);
    raise(SIGUSR1);
    printf("disabled: %d fired, %d inside, flags %d\n", fired, inside, flags);
    show_state();
    return 0;
}
