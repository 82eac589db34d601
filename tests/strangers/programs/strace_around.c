// asks: does a program run as bare where strace follows `probe` and it, and are its calls counted?
// (docs/debuggers.md)
// under: strace -f -o /dev/null
// documented * stderr: docs/debuggers.md: `probe` says so on standard error, with the debugger's name
#include "tool_around.h"
