// asks: does a program that changes its root go on being traced? (chroot(2))
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    CHECK(mkdir("empty", 0700) == 0);
    if (chroot("empty") != 0) SKIP("chroot is root's");
    CHECK(chdir("/") == 0);
    int n = 0;
    pid_t pid = fork();
    if (pid == 0) _exit(work(3));
    show_child("child", pid);
    for (int i = 0; i < 50; i++) n = work(n), getppid();
    printf("%d, open: %s\n", n, open("/proc/self/maps", O_RDONLY) < 0 ? strerror(errno) : "works");
    return 0;
}
