// asks: do ignored and blocked signals go through exec, and no others? (HIT_13, execve(2), signal(7))
// argv: first
#include "stranger.h"

int main(int argc, char **argv) {
    (void)argc;
    if (strcmp(argv[1], "second") == 0) {
        // Of what the kernel itself says in /proc the README tells.
        show_descriptors();
        show_signals();
        return 5;
    }
    signal(SIGTRAP, SIG_IGN);
    signal(SIGSEGV, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    sigaddset(&set, SIGBUS);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGBUS);
    raise(SIGUSR2);
    execl("/proc/self/exe", argv[0], "second", (char *)NULL);
    return 99;
}
