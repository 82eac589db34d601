// asks: does a program that puts a FIFO in its own file's place hang the tracer? (EVT_2)
#include "stranger.h"
#include <dlfcn.h>

FUNCTION static int work(int n) { return n + 1; }

int main(int argc, char **argv) {
    (void)argc;
    CHECK(unlink(argv[0]) == 0);
    CHECK(mkfifo(argv[0], 0600) == 0);
    // A library that comes now makes the tracer look around.
    CHECK(dlopen("libm.so.6", RTLD_NOW));
    int n = 0;
    for (int i = 0; i < 20; i++) n = work(n), getppid();
    printf("%d\n", n);
    calls(".", "work", 20);
    calls("libc.so.6", "getppid", 20);
    return 3;
}
