// asks: do coroutines that switch inside probed functions return where they should? (RET_5, RET_11,
// makecontext(3)) short
#include "stranger.h"
#include <ucontext.h>

static ucontext_t home, self[3];
static int order[64], steps;

FUNCTION static int inner(int who, int n) {
    order[steps++] = who * 10 + n;
    CHECK(swapcontext(&self[who], &self[(who + 1) % 3]) == 0);
    return who + n;
}

static void body(int who) {
    int sum = 0;
    for (int n = 0; n < 5; n++) sum += inner(who, n);
    order[steps++] = 1000 + sum;
    setcontext(steps < 18 ? &self[(who + 1) % 3] : &home);
}

int main(void) {
    for (int i = 0; i < 3; i++) {
        getcontext(&self[i]);
        self[i].uc_stack.ss_size = 65536;
        self[i].uc_stack.ss_sp = malloc(65536);
        self[i].uc_link = &home;
        makecontext(&self[i], (void (*)(void))body, 1, i);
    }
    CHECK(swapcontext(&home, &self[0]) == 0);
    for (int i = 0; i < steps; i++) printf("%d ", order[i]);
    printf("\n");
    calls(".", "inner", 15);
    return 0;
}
