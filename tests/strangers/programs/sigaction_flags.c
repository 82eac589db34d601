// asks: do SA_NODEFER, SA_RESETHAND, sa_mask, SA_NOCLDWAIT, SA_NOCLDSTOP and queued values do what they do
// bare? (HIT_12, HIT_13, sigaction(2), sigqueue(3))
#include "stranger.h"

static volatile int depth, deepest, fired;

FUNCTION static int work(int n) { return n + 1; }

static void nested(int signal) {
    int now = ++depth;
    if (now > deepest) deepest = now;
    if (fired++ < 5) raise(signal);
    fired = work(fired) - 1;
    depth--;
}

static void once(int signal) { (void)signal; fired++; }

static void told(int signal, siginfo_t *info, void *context) {
    (void)context;
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    printf("signal %d, code %d, value %d, own %d\n", signal, info->si_code, info->si_value.sival_int, info->si_pid == getpid());
    show_set("blocked inside", &mask);
}

static void unmasks(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    // Takes effect when the handler returns.
    sigdelset(&((ucontext_t *)context)->uc_sigmask, SIGUSR1);
    sigaddset(&((ucontext_t *)context)->uc_sigmask, SIGUSR2);
}

static void queued(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = told, .sa_flags = SA_SIGINFO | flags};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGHUP);
    sigaddset(&action.sa_mask, SIGWINCH);
    CHECK(sigaction(signal, &action, NULL) == 0);
    CHECK(sigqueue(getpid(), signal, (union sigval){.sival_int = 40 + signal}) == 0);
    work(1);
}

static pid_t wait_for(pid_t pid, int *status, int options) {
    pid_t got;
    while ((got = waitpid(pid, status, options)) < 0 && errno == EINTR) continue;
    return got;
}

// A stop, a continuation and an end may be one signal or more.
static void children(int flags) {
    on(SIGCHLD, once, flags);
    fired = 0;
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGSTOP);
        _exit(work(3));
    }
    int status = 0;
    CHECK(wait_for(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    int stopped = fired;
    kill(pid, SIGCONT);
    status = 0;
    pid_t got = wait_for(pid, &status, 0);
    int error = got < 0 ? errno : 0;
    printf("children, flags %x: told of the stop %d, of the end %d, waited %d, status %x, %s\n", flags, stopped > 0, fired > stopped,
           got == pid, status, strerror(error));
}

int main(void) {
    on(SIGUSR1, nested, SA_NODEFER);
    raise(SIGUSR1);
    printf("SA_NODEFER: %d deep\n", deepest);
    fired = 0, deepest = 0;
    on(SIGUSR1, nested, 0);
    raise(SIGUSR1);
    printf("deferred: %d deep\n", deepest);
    on(SIGUSR2, once, SA_RESETHAND);
    raise(SIGUSR2);
    struct sigaction after;
    CHECK(sigaction(SIGUSR2, NULL, &after) == 0);
    printf("SA_RESETHAND: default %d\n", after.sa_handler == SIG_DFL);
    queued(SIGRTMIN + 3, 0);
    queued(SIGUSR1, SA_NODEFER);
    queued(SIGTRAP, 0);
    queued(SIGSEGV, SA_RESTART);
    queued(SIGFPE, SA_NODEFER);
    handle(SIGUSR1, unmasks, 0);
    raise(SIGUSR1);
    for (int i = 0; i < 20; i++) work(i);
    sigset_t mask;
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
    show_set("after a handler that changed it", &mask);
    CHECK(sigemptyset(&mask) == 0 && sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
    children(0);
    children(SA_NOCLDSTOP);
    children(SA_NOCLDWAIT | SA_RESTART);
    show_state();
    return 0;
}
