// asks: may a program block every signal by a bare system call, as Go does, and go on hitting? (HIT_13, sigprocmask(2))
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    unsigned long all = ~0ul, before = 0, now = 0;
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8) == 0);
    int n = 0;
    for (int i = 0; i < 50; i++) n = work(n), getppid();
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &now, 8);
    printf("%d, blocked %lx\n", n, now);
    show_status("SigBlk");
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
    calls(".", "work", 50);
    return 0;
}
