// A debugger that follows every child of what it starts, and passes signals on, as `strace -f` does: follows
// PROGRAM ARGUMENTS.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPTIONS = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL };

int main(int argc, char **argv) {
    (void)argc;
    pid_t first = fork();
    if (first == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) return 120;
        raise(SIGSTOP);
        execv(argv[1], argv + 1);
        return 121;
    }
    int status;
    if (waitpid(first, &status, 0) != first || !WIFSTOPPED(status)) return 122;
    if (ptrace(PTRACE_SETOPTIONS, first, 0, OPTIONS) != 0) return 123;
    ptrace(PTRACE_CONT, first, 0, 0);
    int answer = 124;
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (pid == first) answer = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        // What an event stops, and a new child's first stop, are the debugger's.
        int own = status >> 16 != 0 || WSTOPSIG(status) == SIGSTOP;
        ptrace(PTRACE_CONT, pid, 0, own ? 0 : WSTOPSIG(status));
    }
    return answer;
}
