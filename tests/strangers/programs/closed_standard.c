// asks: does what a program opens, with standard input, output and error closed, get the numbers that it gets
// bare? (EVT_2)
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    int out = dup(1);
    close(0), close(1), close(2);
    int a = open("/dev/null", O_RDONLY), b = open("/dev/null", O_WRONLY), c = open("/dev/null", O_WRONLY), d = dup(0);
    int n = 0;
    for (int i = 0; i < 10; i++) n = work(n), getppid();
    pthread_t id;
    CHECK(pthread_create(&id, NULL, (void *(*)(void *))(void (*)(void))getppid, NULL) == 0);
    pthread_join(id, NULL);
    dprintf(out, "%d %d %d %d, %d from %d\n", a, b, c, d, n, out);
    return n;
}
