/* 200 threads at any time, each of which lives for some calls and is replaced, until the input ends. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 200, CALLS = 20 };

static volatile int over;
static int wrong, lived;

__attribute__((noinline)) long work(long n) {
    __asm__ volatile("");
    return n * 3 + 1;
}

static void *life(void *nothing) {
    (void)nothing;
    for (long n = 0; n < CALLS; n++) {
        long *room = malloc(sizeof *room);
        *room = work(n);
        if (*room != n * 3 + 1)
            __sync_fetch_and_add(&wrong, 1);
        free(room);
        usleep(5000);
    }
    __sync_fetch_and_add(&lived, 1);
    return NULL;
}

/* Each has THREADS / 4 threads after one another. */
static void *parent(void *nothing) {
    (void)nothing;
    while (!over) {
        pthread_t threads[THREADS / 4];
        int count = 0;
        while (count < THREADS / 4 && !pthread_create(&threads[count], NULL, life, NULL))
            count++;
        if (count < THREADS / 4)
            __sync_fetch_and_add(&wrong, 1);
        while (count)
            pthread_join(threads[--count], NULL);
    }
    return NULL;
}

int main(void) {
    pthread_t parents[4];
    for (int i = 0; i < 4; i++)
        if (pthread_create(&parents[i], NULL, parent, NULL))
            return 3;
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    over = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(parents[i], NULL);
    printf("%s, %d wrong\n", lived ? "lived" : "idle", wrong);
    return 0;
}
