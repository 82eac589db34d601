// asks: does closing all descriptors from 3 on, and taking all numbers up to 1,100, harm the tracing?
// (HIT_13, close_range(2))
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

static void *thread(void *argument) {
    for (int i = 0; i < 10; i++) work(i), getppid();
    return argument;
}

int main(void) {
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    for (int i = 0; i < 10; i++) work(i), getppid();
    int taken = 0;
    for (int i = 3; i < 1100; i++) taken += dup2(0, i) == i;
    pthread_t id;
    CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
    pthread_join(id, NULL);
    int intact = 0;
    for (int i = 3; i < 1100; i++) {
        struct stat a, b;
        intact += fstat(0, &a) == 0 && fstat(i, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
    }
    printf("%d taken, %d intact\n", taken, intact);
    calls(".", "work", 20);
    calls("libc.so.6", "getppid", 20);
    return 0;
}
