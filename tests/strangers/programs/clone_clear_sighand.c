// asks: is a child without handlers (CLONE_CLEAR_SIGHAND), which libc makes and which the program makes by an
// instruction of its own, hit as bare? (clone3(2))
// documented *-trap stdout: host-linux/README.md: is not noticed if the program makes it without libc, and its hits are wrong.
#include "stranger.h"
#include <linux/sched.h>
#include <spawn.h>

FUNCTION static int work(int n) { return n + 1; }

static void child(void) {
    int n = 0;
    for (int i = 0; i < 10; i++) n = work(n) + (getppid() == 0);
    _exit(n);
}

int main(int argc, char **argv) {
    if (argc > 1) child();
    pid_t pid;
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    CHECK(posix_spawn(&pid, argv[0], NULL, &attributes, (char *[]){argv[0], "child", NULL}, environ) == 0);
    show_child("spawned", pid);
    struct clone_args arguments = {.flags = CLONE_CLEAR_SIGHAND, .exit_signal = SIGCHLD};
    long made = bare_call(SYS_clone3, (long)&arguments, sizeof arguments, 0, 0);
    if (made == -ENOSYS || made == -EINVAL) SKIP("CLONE_CLEAR_SIGHAND");
    if (made == 0) child();
    CHECK(made > 0);
    show_child("by itself", (pid_t)made);
    show_state();
    return 0;
}
