// asks: does strace see of its program the system calls and signals that it sees bare? (docs/debuggers.md,
// ptrace(2))
// events: no
#include "tool_inside.h"

int main(int argc, char **argv) {
    if (argc > 1) return inner();
    if (!has_tool("strace")) SKIP("strace is not installed");
    char *const words[] = {"strace", "-f", "-e", "trace=getppid,exit_group,rt_sigaction,rt_sigprocmask", "-e", "raw=all", "-o", "|grep -o \"getppid\\|exit_group(0x[0-9a-f]*\\|--- SIG[A-Z0-9]*\\|rt_sig[a-z]*(0x[0-9a-f]*\"",
                           argv[0], "inner", NULL};
    const char *const wanted[] = {"getppid", "exit_group", "--- ", "rt_sig", "child:", "sum", NULL};
    show_lines(words, wanted);
    return 0;
}
