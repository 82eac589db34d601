// asks: does gdb, with breakpoints, a step and a watched signal, see of its program what it sees bare?
// (docs/debuggers.md, ptrace(2))
// events: no
#include "tool_inside.h"

int main(int argc, char **argv) {
    if (argc > 1) return inner();
    if (!has_tool("gdb")) SKIP("gdb is not installed");
    char *const words[] = {"gdb", "-nx", "-batch", "-ex", "set startup-with-shell off", "-ex", "set print thread-events off", "-ex", "break work",
                           "-ex", "run", "-ex", "print $_exitcode", "-ex", "print (int)$rdi", "-ex", "stepi", "-ex", "finish", "-ex", "print (int)$rax",
                           "-ex", "continue", "-ex", "print (int)$rdi", "-ex", "delete", "-ex", "handle SIGURG stop print", "-ex", "continue", "-ex",
                           "continue", "-ex", "print $_exitcode", "--args", argv[0], "inner", NULL};
    const char *const wanted[] = {"$", "Program received", "child:", "in work ()", "exited", NULL};
    show_lines(words, wanted);
    return 0;
}
