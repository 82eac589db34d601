// asks: does a program that is not dumpable, may gain no privileges and drops to another user go on?
// (prctl(2), setuid(2))
// probe: -f
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    if (getuid() == 0) CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    int n = 0;
    for (int i = 0; i < 20; i++) n = work(n), getppid();
    pid_t pid = fork();
    if (pid == 0) _exit(work(getppid() != 0));
    show_child("child", pid);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, (void *(*)(void *))(void (*)(void))getppid, NULL) == 0);
    pthread_join(id, NULL);
    printf("%d\n", n);
    calls(".", "work", 21);
    calls("libc.so.6", "getppid", 22);
    show_status("NoNewPrivs");
    return 0;
}
