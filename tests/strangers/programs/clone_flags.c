// asks: do children by clone() that share descriptors, folder or handlers, tell of their end by another
// signal or by none, and leave their numbers where they are told to, do what they do bare? (clone(2))
#include "stranger.h"
#include <linux/futex.h>
#include <poll.h>

static volatile pid_t told, cleared;
static volatile int fired;

FUNCTION static int work(int n) { return n * 2 + 1; }

static void handler(int signal) { (void)signal; fired++; }

static int changes(void *argument) {
    for (int i = 0; i < 20; i++) work(i);
    close(9);
    CHECK(chdir("/") == 0);
    umask(077);
    on(SIGWINCH, handler, 0);
    on(SIGTRAP, handler, 0);
    (void)argument;
    return work(1);
}

static void one(const char *name, int flags) {
    CHECK(dup2(1, 9) == 9 && chdir("/proc") == 0);
    signal(SIGWINCH, SIG_DFL), signal(SIGTRAP, SIG_DFL);
    umask(022);
    fired = 0;
    char *stack = mmap(NULL, 262144, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t number = 0;
    cleared = -1;
    pid_t pid = clone(changes, stack + 262144, flags, NULL, &number, NULL, &cleared);
    CHECK(pid > 0);
    int descriptor = -1, ended = 0, status = 0;
    if (flags & CLONE_PIDFD) {
        descriptor = number;
        struct pollfd poll_one = {.fd = descriptor, .events = POLLIN};
        ended = poll(&poll_one, 1, -1) == 1;
    }
    pid_t got;
    while ((got = waitpid(pid, &status, __WALL)) < 0) CHECK(errno == EINTR);
    struct sigaction window, trap;
    CHECK(sigaction(SIGWINCH, NULL, &window) == 0 && sigaction(SIGTRAP, NULL, &trap) == 0);
    char folder[64] = "";
    CHECK(getcwd(folder, sizeof folder));
    printf("%s: status %x, told %d, number %d, descriptor %d, cleared %d, open %d, folder %s, mask %o, handled %d %d\n", name, status,
           fired, number == pid, ended, cleared == 0, fcntl(9, F_GETFD) == 0, folder, (unsigned)umask(022), window.sa_handler == handler,
           trap.sa_handler == handler);
    if (descriptor >= 0) close(descriptor);
    close(9);
    munmap(stack, 262144);
}

int main(void) {
    on(SIGUSR1, handler, SA_RESTART);
    one("plain", SIGCHLD);
    one("CLONE_FILES", CLONE_FILES | SIGCHLD);
    one("CLONE_FS", CLONE_FS | SIGCHLD);
    one("SIGUSR1", SIGUSR1);
    one("no signal", 0);
    one("CLONE_PARENT_SETTID", CLONE_PARENT_SETTID | SIGCHLD);
    one("CLONE_PIDFD", CLONE_PIDFD | SIGCHLD);
    one("CLONE_VM", CLONE_VM | SIGCHLD);
    one("CLONE_VM, cleared", CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD);
    one("CLONE_VM, CLONE_SIGHAND", CLONE_VM | CLONE_SIGHAND | SIGCHLD);
    one("CLONE_VFORK", CLONE_VM | CLONE_VFORK | SIGCHLD);
    one("CLONE_VFORK, shared", CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_FS | SIGCHLD);
    show_state();
    return 0;
}
