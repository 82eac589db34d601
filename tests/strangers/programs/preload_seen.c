// asks: may a program take LD_PRELOAD away, and start another without it? (ld.so(8))
#include "stranger.h"

int main(void) {
    unsetenv("LD_PRELOAD");
    setenv("OWN", "1", 1);
    printf("LD_PRELOAD %s\n", getenv("LD_PRELOAD") ? "is there" : "is not there");
    fflush(stdout);
    return system("test -z \"$LD_PRELOAD\" && echo child: $OWN; exit 3") >> 8;
}
