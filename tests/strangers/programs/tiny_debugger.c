// asks: does a debugger with a breakpoint of its own in its child, which is traced, too, stop there and read
// registers? (ptrace(2))
#include "stranger.h"
#include <sys/ptrace.h>
#include <sys/user.h>

FUNCTION int target(int n) { return n * 3; }
FUNCTION int place(int n) { __asm__ volatile("nop\nplace_inside: nop; nop; nop" : "+r"(n)); return n + 1; }
extern char place_inside[];

int main(void) {
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        int n = 0;
        for (int i = 0; i < 3; i++) n = target(place(n));
        _exit(n);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, pid, place_inside, 0);
    CHECK(errno == 0);
    CHECK(ptrace(PTRACE_POKETEXT, pid, place_inside, (word & ~0xffl) | 0xcc) == 0);
    ptrace(PTRACE_CONT, pid, 0, 0);
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        struct user_regs_struct regs;
        ptrace(PTRACE_GETREGS, pid, 0, &regs);
        int ours = regs.rip == (unsigned long)place_inside + 1;
        printf("stopped by %d, %s\n", WSTOPSIG(status), ours ? "at the breakpoint" : "elsewhere");
        // Over it: the instruction there is a NOP.
        ptrace(PTRACE_CONT, pid, 0, ours ? 0 : WSTOPSIG(status));
    }
    printf("exited %d, status %d\n", WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
