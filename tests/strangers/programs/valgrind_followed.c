// asks: the same as valgrind_inside, where what the traced program starts is followed. (docs/debuggers.md)
// events: no
// counts: no
// probe: -f
#include "valgrind_inside.c"
