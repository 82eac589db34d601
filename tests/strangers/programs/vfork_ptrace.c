// asks: does a debugger that starts its program by vfork, PTRACE_TRACEME, sigprocmask and exec see what it
// sees bare? (ptrace(2)) short
#include "stranger.h"
#include <sys/ptrace.h>

int main(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    int status, stops = 0;
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        stops++;
        int signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        if (stops < 20) printf("stopped by %d\n", WSTOPSIG(status));
        ptrace(PTRACE_CONT, pid, 0, signal);
    }
    printf("%d stops, exited %d, status %d\n", stops, WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
