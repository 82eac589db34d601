// asks: does a debugger that starts its program by fork see signals that are not the program's? (ptrace(2))
// short
#include "stranger.h"
#include <sys/ptrace.h>

int main(void) {
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        getppid();
        getppid();
        raise(SIGUSR1);
        _exit(9);
    }
    int status, stops = 0;
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        if (++stops < 20) printf("stopped by %d\n", WSTOPSIG(status));
        // As debuggers do with what they do not know: SIGTRAP is theirs.
        int signal = WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP || WSTOPSIG(status) == SIGUSR1 ? 0 : WSTOPSIG(status);
        ptrace(PTRACE_CONT, pid, 0, signal);
    }
    printf("%d stops, exited %d, status %d\n", stops, WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
