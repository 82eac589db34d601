// asks: is what a debugger sees of a child of vfork as bare where the first program cannot be executed, by
// each of exec's functions, and are the debugger's own signals and calls as bare afterwards? (ptrace(2),
// vfork(2), execve(2)) short
#include "stranger.h"
#include <sys/ptrace.h>

static volatile sig_atomic_t children, alarms;
static volatile int failed;
static void on_child(int signal) { (void)signal; children++; }
static void on_alarm(int signal) { (void)signal; alarms++; }
FUNCTION int work(int n) { return n * 3 + 1; }

static void execute(int how, char *const variables[]) {
    char *const good[] = {"sh", "-c", "exit $CODE", NULL};
    switch (how) {
    case 0: execve("/bin/sh", good, variables); break;
    case 1: execle("/bin/sh", "sh", "-c", "exit $CODE", (char *)NULL, variables); break;
    case 2: execvpe("sh", good, variables); break;
    case 3: fexecve(open("/bin/sh", O_RDONLY | O_CLOEXEC), good, variables); break;
    case 4: execveat(AT_FDCWD, "/bin/sh", good, variables, 0); break;
    case 5: syscall(SYS_execve, "/bin/sh", good, variables); break;
    }
}

static void follow(const char *name, pid_t pid) {
    int status, stops = 0;
    pid_t seen;
    while ((seen = waitpid(pid, &status, 0)) == pid || (seen < 0 && errno == EINTR)) {
        if (seen < 0) continue;
        if (!WIFSTOPPED(status)) break;
        if (++stops < 20) printf("%s: stopped by %d\n", name, WSTOPSIG(status));
        ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status));
    }
    printf("%s: %d stops, exited %d, status %d\n", name, stops, WIFEXITED(status), WEXITSTATUS(status));
}

int main(void) {
    on(SIGCHLD, on_child, SA_RESTART);
    on(SIGALRM, on_alarm, SA_RESTART);
    char code[] = "CODE=1";
    char *variables[] = {code, NULL};
    for (int how = 0; how < 6; how++) {
        pid_t pid = vfork();
        if (pid == 0) {
            failed = 0;
            if (how == 5 ? syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0) : ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(8);
            sigset_t none;
            sigemptyset(&none);
            sigprocmask(SIG_SETMASK, &none, NULL);
            char *const bad[] = {"none", NULL};
            execve("/nonexistent/none", bad, variables);
            failed = errno;
            execute(how, variables);
            _exit(9);
        }
        CHECK(pid > 0);
        char name[16];
        snprintf(name, sizeof name, "way %d", how);
        printf("%s: the other one failed with %s\n", name, strerror(failed));
        follow(name, pid);
        code[5]++;
    }
    int n = 0;
    for (int i = 0; i < 1000; i++) n = work(n) % 1000;
    kill(getpid(), SIGALRM);
    printf("%d, %d alarms, children were told of: %s\n", n, (int)alarms, children ? "yes" : "no");
    calls(".", "work", 1000);
    show_signals();
    return 0;
}
