// asks: do threads, forks and libraries work for a program that may open no descriptor? (EVT_2, setrlimit(2)
// RLIMIT_NOFILE)
// probe: -f
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

static void *thread(void *argument) {
    for (int i = 0; i < 10; i++) work(i), getppid();
    return argument;
}

int main(void) {
    struct rlimit few = {3, 3};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (int i = 0; i < 5; i++) {
        pthread_t id;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
        pthread_join(id, NULL);
    }
    pid_t pid = fork();
    if (pid == 0) {
        thread(NULL);
        _exit(open("/dev/null", O_RDONLY) < 0 ? errno : 0);
    }
    show_child("child", pid);
    calls(".", "work", 60);
    calls("libc.so.6", "getppid", 60);
    return 0;
}
