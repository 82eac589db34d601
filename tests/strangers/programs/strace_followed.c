// asks: the same as strace_inside, where what the traced program starts is followed. (docs/debuggers.md)
// events: no
// counts: no
// probe: -f
#include "strace_inside.c"
