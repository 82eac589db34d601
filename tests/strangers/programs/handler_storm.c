// asks: do handlers that probed code interrupts and that call probed code count exactly, in four threads?
// (HIT_12, HIT_7)
// events: no
#include "stranger.h"

static atomic_int fired;
static volatile sig_atomic_t stop;

FUNCTION static int work(int n) { return n + 1; }

static void handler(int signal) {
    (void)signal;
    work(1);
    getppid();
    atomic_fetch_add(&fired, 1);
}

static void *thread(void *argument) {
    int n = 0;
    while (!stop) n = work(n), getppid();
    return (void *)(long)(n > 0 && argument == NULL);
}

int main(void) {
    on(SIGUSR1, handler, SA_RESTART);
    pthread_t ids[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&ids[i], NULL, thread, NULL) == 0);
    for (int round = 0; round < 300; round++) {
        int before = fired;
        for (int i = 0; i < 3; i++) pthread_kill(ids[i], SIGUSR1);
        while (fired < before + 3) sched_yield();
    }
    stop = 1;
    int all = 1;
    for (int i = 0; i < 3; i++) {
        void *answer;
        pthread_join(ids[i], &answer);
        all &= answer != NULL;
    }
    printf("%d, %d\n", fired, all);
    calls(".", "handler", 900);
    show_signals();
    return 0;
}
