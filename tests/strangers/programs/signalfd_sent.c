// asks: does a signalfd read SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL that were sent? (HIT_13, signalfd(2))
// documented * status: host-linux/README.md: and a `signalfd` finds none that was sent before a thread waits for it.
// documented * stdout: host-linux/README.md: and a `signalfd` finds none that was sent before a thread waits for it.
// documented * stderr: host-linux/README.md: and a `signalfd` finds none that was sent before a thread waits for it.
#include "stranger.h"
#include <sys/signalfd.h>

int main(void) {
    static const int signals[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < 5; i++) sigaddset(&set, signals[i]);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    CHECK(fd >= 0);
    for (int i = 0; i < 5; i++) {
        struct signalfd_siginfo info;
        kill(getpid(), signals[i]);
        sigset_t pending;
        sigpending(&pending);
        show_set("pending", &pending);
        CHECK(read(fd, &info, sizeof info) == sizeof info);
        printf("%u\n", info.ssi_signo);
    }
    show_state();
    return 0;
}
