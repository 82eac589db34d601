// asks: are the five signals that the tracer handles, sent while blocked, there for sigwait? (HIT_13,
// sigwait(3))
#include "stranger.h"

static const int SIGNALS[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

static void wait_for(const char *how, int want) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, want);
    siginfo_t info;
    CHECK(sigwaitinfo(&set, &info) == want);
    printf("%s: %d, code %d, value %d\n", how, info.si_signo, info.si_code, info.si_code == SI_QUEUE ? info.si_value.sival_int : 0);
}

int main(void) {
    for (unsigned i = 0; i < 5; i++) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGNALS[i]);
        CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
        kill(getpid(), SIGNALS[i]);
        wait_for("kill", SIGNALS[i]);
        sigqueue(getpid(), SIGNALS[i], (union sigval){.sival_int = 42});
        wait_for("sigqueue", SIGNALS[i]);
        syscall(SYS_tgkill, getpid(), gettid(), SIGNALS[i]);
        wait_for("tgkill", SIGNALS[i]);
        raise(SIGNALS[i]);
        wait_for("raise", SIGNALS[i]);
    }
    // Of what the kernel itself says in /proc the README tells.
    show_descriptors();
    show_signals();
    return 0;
}
