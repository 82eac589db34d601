// asks: does Valgrind find in its program what it finds bare? (docs/debuggers.md)
// events: no
#include "tool_inside.h"

int main(int argc, char **argv) {
    if (argc > 1) return inner() + (malloc(40) == NULL);
    if (!has_tool("valgrind")) SKIP("valgrind is not installed");
    char *const words[] = {"valgrind", "--leak-check=full", "--child-silent-after-fork=yes", argv[0], "inner", NULL};
    const char *const wanted[] = {"total heap usage", "definitely lost", "ERROR SUMMARY", "child:", "sum", NULL};
    show_lines(words, wanted);
    return 0;
}
