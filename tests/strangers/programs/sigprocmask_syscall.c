// asks: may a program block every signal through libc's syscall() and go on hitting? (HIT_13, sigprocmask(2))
// documented * stdout: host-linux/README.md: The kernel never blocks SIGTRAP, SIGSEGV and SIGBUS
#include "stranger.h"

#define CALL(how, set, old) syscall(SYS_rt_sigprocmask, how, set, old, 8)
FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    unsigned long all = ~0ul, before = 0, now = 0;
    CHECK(CALL(SIG_SETMASK, (long)&all, (long)&before) == 0);
    int n = 0;
    for (int i = 0; i < 50; i++) n = work(n), getppid();
    CALL(SIG_SETMASK, 0, (long)&now);
    printf("%d, blocked %lx\n", n, now);
    show_status("SigBlk");
    CALL(SIG_SETMASK, (long)&before, 0);
    calls(".", "work", 50);
    return 0;
}
