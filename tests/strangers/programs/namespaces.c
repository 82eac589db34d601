// asks: are children in a namespace of processes, of users and of mounts of their own, where numbers are
// others, as bare? (EVT_1, unshare(2), pid_namespaces(7))
#include "stranger.h"
#include <sys/mount.h>

FUNCTION static int work(int n) { return n + 1; }
static void *thread(void *argument) { return (char *)argument + work(1); }

static void apart(const char *name, int flags) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(flags) != 0) _exit(77);
        pid_t inner = fork();
        if (inner == 0) {
            printf("%s: first %d, parent unseen %d\n", name, getpid() == 1, getppid() == 0);
            fflush(stdout);
            if (flags & CLONE_NEWNS) mount("none", "/proc", "tmpfs", 0, NULL);
            int n = 0;
            for (int i = 0; i < 40; i++) n = work(n);
            pthread_t id;
            CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
            pthread_join(id, NULL);
            _exit(n);
        }
        show_child(name, inner);
        _exit(0);
    }
    show_child("outside", pid);
}

int main(void) {
    apart("processes", CLONE_NEWPID);
    apart("users", CLONE_NEWUSER);
    apart("both, and mounts", CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS);
    apart("descriptors", CLONE_FILES | CLONE_FS);
    show_state();
    return 0;
}
