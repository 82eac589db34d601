// asks: do two thousand short threads come, hit and go without a loss? (HIT_7, EVT_1, pthread_create(3))
// short
#include "stranger.h"

static atomic_int sum;

FUNCTION static int work(int n) { return n & 1; }

static void *thread(void *argument) {
    atomic_fetch_add(&sum, work((int)(long)argument));
    getppid();
    return NULL;
}

int main(void) {
    for (int i = 0; i < 250; i++) {
        pthread_t ids[8];
        for (long j = 0; j < 8; j++) CHECK(pthread_create(&ids[j], NULL, thread, (void *)j) == 0);
        for (int j = 0; j < 8; j++) pthread_join(ids[j], NULL);
    }
    printf("%d\n", sum);
    calls(".", "work", 2000);
    calls(".", "thread", 2000);
    calls("libc.so.6", "getppid", 2000);
    show_state();
    return 0;
}
