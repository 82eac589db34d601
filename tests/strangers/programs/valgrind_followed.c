// asks: the same as valgrind_inside, where what the traced program starts is followed. (docs/debuggers.md)
// events: no
// counts: no
// probe: -f
// documented * stdout: docs/debuggers.md: a hit by a trap in a program that Valgrind runs ends Valgrind
#include "valgrind_inside.c"
