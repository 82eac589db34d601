// asks: does a program run as bare where `probe` runs in gdb, and are its calls counted? (docs/debuggers.md)
// under: gdb -nx -batch-silent -iex "set auto-load off" -ex run --args
#include "tool_around.h"
