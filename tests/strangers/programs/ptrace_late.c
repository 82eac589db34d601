// asks: does a child find its own actions, masks, stacks and descriptors where it asks to be debugged after
// some work, and its children, threads and executed programs run as bare? (ptrace(2), fork(2))
// counts: no
// short
#include "stranger.h"
#include <sys/ptrace.h>

static volatile sig_atomic_t seen;
static void on_signal(int signal) { seen = signal; }
FUNCTION int work(int n) { return n * 3 + 1; }
static void *thread(void *argument) { return (void *)(intptr_t)work((int)(intptr_t)argument); }

static int child(void) {
    static char stack[1 << 16];
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&own, NULL) == 0);
    on(SIGUSR1, on_signal, SA_ONSTACK);
    on(SIGTRAP, on_signal, 0);
    on(SIGSEGV, SIG_IGN, 0);
    CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    raise(SIGSTOP);
    show_state();
    raise(SIGUSR1);
    printf("seen %d\n", (int)seen);
    raise(SIGTRAP);
    printf("seen %d\n", (int)seen);
    pthread_t other;
    void *answer;
    CHECK(pthread_create(&other, NULL, thread, (void *)7) == 0 && pthread_join(other, &answer) == 0);
    printf("thread %d\n", (int)(intptr_t)answer);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit(work(4));
    show_child("grandchild", pid);
    pid = vfork();
    if (pid == 0) { execl("/bin/false", "false", (char *)NULL); _exit(9); }
    show_child("executed", pid);
    char *const arguments[] = {"sh", "-c", "exit 5", NULL};
    execvp("sh", arguments);
    return 9;
}

int main(void) {
    pid_t pid = fork();
    if (pid == 0) _exit(child());
    int status, stops = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, 0)) == pid && WIFSTOPPED(status)) {
        if (++stops < 20) fprintf(stderr, "stopped by %d\n", WSTOPSIG(status));
        int signal = WSTOPSIG(status);
        siginfo_t info;
        CHECK(ptrace(PTRACE_GETSIGINFO, pid, 0, &info) == 0);
        // After an execution, from the kernel in the child's own name.
        if (signal == SIGTRAP && info.si_code == SI_USER) signal = 0;
        ptrace(PTRACE_CONT, pid, 0, signal == SIGSTOP ? 0 : signal);
    }
    fprintf(stderr, "%d stops, exited %d, status %d\n", stops, WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
