// asks: does a program run as bare where `probe` runs in Valgrind, and are its calls counted?
// (docs/debuggers.md)
// under: valgrind --quiet --tool=none
#include "tool_around.h"
