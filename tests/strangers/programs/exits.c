// asks: do exit, quick_exit, _exit, abort, a return and exit in a destructor leave with what they leave with
// bare? (exit(3))
#include "stranger.h"

static int in_destructor;
static void first(void) { printf("first "); }
static void second(void) { printf("second "); }
static void quick(void) { printf("quick "), fflush(stdout); }
__attribute__((destructor)) static void end(void) {
    printf("destructor\n");
    fflush(stdout);
    if (in_destructor) exit(44);
}

static void leave(int how) {
    signal(SIGABRT, SIG_DFL);
    atexit(first);
    atexit(second);
    at_quick_exit(quick);
    switch (how) {
    case 0: exit(10);
    case 1: quick_exit(11);
    case 2: _exit(12);
    case 3: abort();
    case 4: raise(SIGKILL); break;
    case 5: in_destructor = 1; exit(13);
    case 6: syscall(SYS_exit_group, 14); break;
    case 7: pthread_exit(NULL);
    }
}

int main(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (int how = 0; how < 8; how++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            leave(how);
            _exit(99);
        }
        show_child("child", pid);
    }
    in_destructor = 1;
    return 17;
}
