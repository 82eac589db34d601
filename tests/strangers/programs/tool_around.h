// A program for tools around it.
#include "stranger.h"

FUNCTION static int work(int n) { return n * 3 + 1; }
static void *thread(void *argument) {
    for (int i = 0; i < 20; i++) work(i);
    return argument;
}

int main(void) {
    int n = 0;
    for (int i = 0; i < 10; i++) n = work(n) % 100 + (getppid() == 0);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
    pthread_join(id, NULL);
    printf("%d\n", n);
    calls(".", "work", 30);
    calls("libc.so.6", "getppid", 10);
    return 5;
}
