// asks: does a program go on that asks whether it is debugged, as those do that do not want to be?
// (ptrace(2)) short
#include "stranger.h"
#include <sys/ptrace.h>

FUNCTION int work(int n) { return n * 3; }

int main(void) {
    printf("first: %ld\n", ptrace(PTRACE_TRACEME, 0, 0, 0));
    long second = ptrace(PTRACE_TRACEME, 0, 0, 0);
    printf("second: %ld, %s\n", second, strerror(errno));
    int n = 1;
    for (int i = 0; i < 10; i++) n = work(n) % 1000;
    void *all[32];
    for (int i = 0; i < 32; i++) all[i] = malloc(100 + (unsigned)i);
    for (int i = 0; i < 32; i++) free(all[i]);
    printf("%d\n", n);
    calls(".", "work", 10);
    return 0;
}
