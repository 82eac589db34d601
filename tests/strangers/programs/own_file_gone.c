// asks: does a program whose file, and whose folder, is gone go on being traced? (EVT_2)
// probe: -f
#include "stranger.h"
#include <dlfcn.h>

FUNCTION static int work(int n) { return n + 1; }

int main(int argc, char **argv) {
    (void)argc;
    CHECK(unlink(argv[0]) == 0);
    CHECK(mkdir("below", 0700) == 0 && chdir("below") == 0 && rmdir("../below") == 0);
    char path[4096];
    printf("getcwd: %s\n", getcwd(path, sizeof path) ? "is there" : strerror(errno));
    CHECK(dlopen("libm.so.6", RTLD_NOW));
    pid_t pid = fork();
    if (pid == 0) _exit(work(4));
    show_child("child", pid);
    calls(".", "work", 2);
    return work(3) - 1;
}
