// Three hundred threads that are inside of one function at the same time.
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 300 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int inside, is_open;

__attribute__((noinline)) int blocked(int number) {
    pthread_mutex_lock(&mutex);
    inside++;
    pthread_cond_broadcast(&changed);
    while (!is_open)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return number;
}

static void *run(void *number) {
    return blocked((int)(long)number) == (int)(long)number ? NULL : number;
}

int main(void) {
    pthread_t all[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    for (long i = 0; i < THREADS; i++) {
        if (pthread_create(&all[i], &attributes, run, (void *)i) != 0)
            return 1;
        // One after the other, so that nothing depends on how they are scheduled.
        pthread_mutex_lock(&mutex);
        while (inside <= i)
            pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
    }
    pthread_mutex_lock(&mutex);
    is_open = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(all[i], &result);
        wrong += result != NULL;
    }
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
