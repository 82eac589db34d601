// asks: the same as gdb_inside, where what the traced program starts is followed. (docs/debuggers.md)
// events: no
// counts: no
// probe: -f
#include "gdb_inside.c"
