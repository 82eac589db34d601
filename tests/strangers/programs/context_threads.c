// asks: may a context that began in one thread, inside of followed calls, go on and return in another?
// (RET_5, RET_11, swapcontext(3))
#include "stranger.h"
#include <ucontext.h>

enum { CONTEXTS = 8, ROUNDS = 20 };
static ucontext_t self[CONTEXTS], home[2];
static int results[CONTEXTS], rounds[CONTEXTS], turn;
static pthread_barrier_t barrier;

FUNCTION static int inner(int who, int n) {
    // `turn` is the thread's that runs it now, which is another one behind the switch.
    CHECK(swapcontext(&self[who], &home[turn]) == 0);
    return who * n;
}

FUNCTION static int outer(int who, int n) { return inner(who, n) + 1; }

static void body(int who) {
    for (int n = 0; n < ROUNDS; n++) results[who] += outer(who, n), rounds[who]++;
    for (;;) CHECK(swapcontext(&self[who], &home[turn]) == 0);
}

static void *thread(void *argument) {
    int who = (int)(long)argument;
    for (int round = 0; round < 2 * ROUNDS + 2; round++) {
        if (round % 2 == who) {
            turn = who;
            for (int i = 0; i < CONTEXTS; i++) CHECK(swapcontext(&home[who], &self[i]) == 0);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(void) {
    for (int i = 0; i < CONTEXTS; i++) {
        CHECK(getcontext(&self[i]) == 0);
        self[i].uc_stack.ss_size = 65536;
        self[i].uc_stack.ss_sp = malloc(65536);
        makecontext(&self[i], (void (*)(void))body, 1, i);
    }
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t ids[2];
    for (long i = 0; i < 2; i++) CHECK(pthread_create(&ids[i], NULL, thread, (void *)i) == 0);
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < CONTEXTS; i++) printf("%d of %d, ", results[i], rounds[i]);
    printf("\n");
    calls(".", "inner", CONTEXTS * ROUNDS);
    calls(".", "outer", CONTEXTS * ROUNDS);
    return 0;
}
