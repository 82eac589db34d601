// asks: does longjmp out of five probed frames leave the calls before and behind it right? (RET_7, setjmp(3))
// cc: -fno-optimize-sibling-calls
#include "stranger.h"
#include <setjmp.h>

static jmp_buf back;

FUNCTION static int deep(int n, int jumps) {
    if (n == 0 && jumps) longjmp(back, 5);
    return n == 0 ? 1 : deep(n - 1, jumps) + 1;
}

FUNCTION static int outer(int jumps) { return deep(4, jumps) * 10; }

int main(void) {
    volatile int sum = 0;
    for (volatile int i = 0; i < 200; i++) {
        if (setjmp(back) == 0) sum += outer(i & 1);
        else sum += 3;
    }
    printf("%d\n", sum);
    calls(".", "outer", 200);
    calls(".", "deep", 1000);
    return 0;
}
