// asks: does a `.cold` part, which is entered by a jump, give the sums that it gives bare? (REG_19)
// short
#include "stranger.h"

static volatile int oddities;
__attribute__((cold, noinline)) static void odd(int a, int b, int c) { oddities += a * b - c; }

FUNCTION static int work(int a, int b, int c) {
    int x = a * 3 + b, y = b * 5 - c, z = c + a;
    for (int i = 0; i < 3; i++) x += y ^ z, y += x * a, z -= b;
    if (__builtin_expect(x % 7 == 0, 0)) {
        odd(x, y, z);
        x += y * z + a;
        odd(a, b, x);
        return x - y;
    }
    return x + y + z;
}

int main(void) {
    unsigned sum = 0;
    for (int i = 0; i < 500; i++) sum += (unsigned)work(i, i * 3, 7 - i);
    printf("%u %d\n", sum, oddities);
    calls(".", "work", 500);
    return 0;
}
