// asks: is a thread cancelled where it blocks, in its deferred and its asynchronous way, and its cleanup run?
// (RET_7, pthread_cancel(3))
#include "stranger.h"

static int pipes[2], cleaned;
static volatile int inside;
FUNCTION static void cleanup(void *argument) { cleaned += (int)(long)argument; }

FUNCTION static long wait_in_read(void) {
    char byte;
    inside = 1;
    long got = read(pipes[0], &byte, 1);
    return got + 1;
}

static void *deferred(void *argument) {
    pthread_cleanup_push(cleanup, argument);
    wait_in_read();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *asynchronous(void *argument) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    pthread_cleanup_push(cleanup, argument);
    inside = 1;
    for (;;) __asm__ volatile("pause" ::: "memory");
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    CHECK(pipe(pipes) == 0);
    int cancelled = 0;
    for (int i = 0; i < 40; i++) {
        pthread_t id;
        void *answer;
        inside = 0;
        CHECK(pthread_create(&id, NULL, i % 2 ? deferred : asynchronous, (void *)1) == 0);
        while (!inside) sched_yield();
        pthread_cancel(id);
        pthread_join(id, &answer);
        cancelled += answer == PTHREAD_CANCELED;
    }
    printf("%d cancelled, %d cleaned\n", cancelled, cleaned);
    calls(".", "wait_in_read", 20);
    calls(".", "cleanup", 40);
    show_state();
    return 0;
}
