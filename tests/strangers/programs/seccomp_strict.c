// asks: under seccomp's strict mode, which allows read, write, _exit and sigreturn, is a hit a hit? (HIT_13,
// seccomp(2))
#include "stranger.h"
#include <linux/seccomp.h>

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    show_state();
    printf("work 20\n");
    calls(".", "work", 20);
    fflush(stdout);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    int n = 0;
    for (int i = 0; i < 20; i++) n = work(n);
    char text[] = "strict\n";
    if (n == 20 && write(1, text, 7) == 7) syscall(SYS_exit, 6);
    syscall(SYS_exit, 7);
}
