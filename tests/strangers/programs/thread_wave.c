// asks: of three hundred threads that come faster than the first of them runs, is each call followed or
// counted? (RET_2)
// misses: yes
#include "stranger.h"

enum { N = 300 };
static pthread_barrier_t barrier;

FUNCTION static int inside(int n) {
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
    for (long i = 0; i < N; i++) CHECK(pthread_create(&ids[i], &small, thread, (void *)i) == 0);
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
