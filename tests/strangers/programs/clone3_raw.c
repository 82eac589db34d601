// asks: is a child of a bare clone3, with and without CLONE_VM|CLONE_VFORK, as bare? (clone(2))
#include "stranger.h"
#include <linux/sched.h>

FUNCTION static int work(int n) { return n + 1; }

static pid_t start(unsigned long long flags) {
    struct clone_args arguments = {.flags = flags, .exit_signal = SIGCHLD};
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

int main(void) {
    int n = 0;
    for (int i = 0; i < 20; i++) {
        pid_t pid = start(0);
        CHECK(pid >= 0);
        if (pid == 0) _exit(work(work(i)));
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        n += WEXITSTATUS(status);
    }
    printf("%d\n", n);
    pid_t pid = start(CLONE_CLEAR_SIGHAND);
    // As libc does where the kernel has none.
    if (pid < 0 && errno == ENOSYS) pid = fork();
    if (pid == 0) {
        work(1);
        show_state();
        exit(3);
    }
    show_child("cleared", pid);
    show_state();
    return 0;
}
