// asks: does a hit read the time stamp counter, where the program may not? (HIT_13, prctl(2) PR_SET_TSC)
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV) != 0) SKIP("PR_SET_TSC");
    int n = 0;
    for (int i = 0; i < 100; i++) n = work(n), getppid();
    int mode = 0;
    prctl(PR_GET_TSC, &mode);
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
    printf("%d, mode %d\n", n, mode);
    calls(".", "work", 100);
    calls("libc.so.6", "getppid", 100);
    return 0;
}
