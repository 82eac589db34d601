// asks: does a stack that ends, without a handler, end the program as bare? (HIT_9)
#include "stranger.h"

FUNCTION static int deep(int n) {
    volatile char room[4000];
    room[0] = (char)n;
    return n < 0 ? 0 : deep(n + 1) + room[0];
}

int main(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    printf("deep\n");
    fflush(stdout);
    return deep(0);
}
