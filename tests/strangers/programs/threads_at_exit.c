// asks: does a program end with its status while eight threads go on hitting? (EVT_1, exit(3))
// events: no
#include "stranger.h"

static volatile int running;

FUNCTION static int work(int n) { return n + 1; }

static void *thread(void *argument) {
    __atomic_fetch_add(&running, 1, __ATOMIC_SEQ_CST);
    for (int n = 0;;) n = work(n) + (getppid() == 0);
    return argument;
}

int main(void) {
    for (int i = 0; i < 8; i++) {
        pthread_t id;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
    }
    while (running < 8) sched_yield();
    printf("leaving\n");
    return 23;
}
