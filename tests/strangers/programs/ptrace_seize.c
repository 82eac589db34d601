// asks: does a debugger that seizes its child, interrupts it, passes every signal on and lets it go, as gdb
// -p does when told so, leave it as bare? (ptrace(2) PTRACE_SEIZE)
#include "stranger.h"
#include <sys/ptrace.h>

FUNCTION int target(int n) { return n * 3 + 1; }

static atomic_int *shared;

static void child(void) {
    int n = 0;
    atomic_store(&shared[0], 1);
    while (!atomic_load(&shared[1])) n = (target(n) + (getppid() == 0)) % 1000;
    n = 0;
    for (int i = 0; i < 50; i++) n = target(n) % 200;
    _exit(n);
}

int main(void) {
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0) child();
    while (!atomic_load(&shared[0])) sched_yield();
    CHECK(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_EXITKILL) == 0);
    int status, interrupted = 0;
    for (int i = 0; i < 20; i++) {
        CHECK(ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0);
        for (;;) {
            CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
            int is_stop = status >> 16 == PTRACE_EVENT_STOP;
            interrupted += is_stop;
            CHECK(ptrace(PTRACE_CONT, pid, 0, is_stop ? 0 : WSTOPSIG(status)) == 0);
            if (is_stop) break;
        }
    }
    atomic_store(&shared[1], 1);
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) ptrace(PTRACE_CONT, pid, 0, status >> 16 ? 0 : WSTOPSIG(status));
    printf("interrupted %d, exited %d, status %d\n", interrupted, WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
