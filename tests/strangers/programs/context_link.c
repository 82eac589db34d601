// asks: does a context that ends go on at its uc_link, whatever its start is made of? (REG_19,
// makecontext(3))
#include "stranger.h"
#include <ucontext.h>

static ucontext_t home, other;

static void body(int a, int b, int c, int d, int e, int f, int g, int h) { printf("%d %d %d %d %d %d %d %d\n", a, b, c, d, e, f, g, h); }

int main(void) {
    char *stack = malloc(65536);
    for (int i = 0; i < 10; i++) {
        CHECK(getcontext(&other) == 0);
        other.uc_stack.ss_sp = stack;
        other.uc_stack.ss_size = 65536;
        other.uc_link = &home;
        makecontext(&other, (void (*)(void))body, 8, i, 2, 3, 4, 5, 6, 7, 8);
        CHECK(swapcontext(&home, &other) == 0);
    }
    free(stack);
    show_state();
    return 4;
}
