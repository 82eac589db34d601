// asks: the same as jdb_inside, where what the traced program starts is followed. (docs/debuggers.md)
// events: no
// counts: no
// probe: -f
#include "jdb_inside.c"
