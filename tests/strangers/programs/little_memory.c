// asks: does a program without room for more memory go on, and see the same failures? (EVT_2, setrlimit(2)
// RLIMIT_AS)
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    // Less than is there already: nothing more can be mapped.
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    int n = 0;
    for (int i = 0; i < 100; i++) n = work(n), getppid();
    void *some = mmap(NULL, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t id;
    int created = pthread_create(&id, NULL, (void *(*)(void *))(void (*)(void))getppid, NULL);
    printf("%d, mmap %s, pthread_create %d\n", n, some == MAP_FAILED ? "fails" : "works", created == EAGAIN);
    calls(".", "work", 100);
    calls("libc.so.6", "getppid", 100);
    return 0;
}
