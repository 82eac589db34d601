// asks: are the calls of three hundred threads, which are all inside at once, all followed? (RET_2, RET_3)
#include "stranger.h"
#include <semaphore.h>

enum { N = 300 };
static pthread_barrier_t barrier;
static sem_t entered;

FUNCTION static int inside(int n) {
    sem_post(&entered);
    pthread_barrier_wait(&barrier);
    return n + 1;
}

static void *thread(void *argument) { return (void *)(long)inside((int)(long)argument); }

int main(void) {
    pthread_t ids[N];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_barrier_init(&barrier, NULL, N);
    sem_init(&entered, 0, 0);
    for (long i = 0; i < N; i++) {
        CHECK(pthread_create(&ids[i], &small, thread, (void *)i) == 0);
        // Each is inside before the next one comes: how many are there is not the scheduler's choice.
        while (sem_wait(&entered) != 0) {}
    }
    long sum = 0;
    for (int i = 0; i < N; i++) {
        void *answer;
        pthread_join(ids[i], &answer);
        sum += (long)answer;
    }
    printf("%ld\n", sum);
    calls(".", "inside", N);
    calls("libc.so.6", "pthread_barrier_wait", N);
    return 0;
}
