// asks: are stacks of PTHREAD_STACK_MIN enough for threads that hit, and that handle signals? (HIT_13,
// pthread_attr_setstacksize(3))
#include "stranger.h"
#include <limits.h>

static volatile int fired;
static void handler(int signal) { (void)signal; fired++; }

FUNCTION static int work(int n) { return n + 1; }

static void *thread(void *argument) {
    int n = 0;
    for (int i = 0; i < 20; i++) n = work(n), getppid();
    raise(SIGUSR1);
    return (void *)(long)(n + (argument != NULL));
}

int main(void) {
    getppid(), raise(0);
    on(SIGUSR1, handler, 0);
    pthread_attr_t small;
    pthread_attr_init(&small);
    CHECK(pthread_attr_setstacksize(&small, (size_t)PTHREAD_STACK_MIN) == 0);
    long sum = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t id;
        void *answer;
        CHECK(pthread_create(&id, &small, thread, NULL) == 0);
        pthread_join(id, &answer);
        sum += (long)answer;
    }
    printf("%ld, %d fired\n", sum, fired);
    calls(".", "work", 400);
    return 0;
}
