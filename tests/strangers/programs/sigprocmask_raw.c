// asks: may a program block every signal by a bare system call, as Go does, and go on hitting? (HIT_13,
// sigprocmask(2))
// documented *-trap status,stdout,calls,counts: host-linux/src/lib.rs: A breakpoint that is hit while SIGTRAP is blocked kills the process.
// documented *-libc-jump status,stdout,calls,counts: host-linux/src/lib.rs: A breakpoint that is hit while SIGTRAP is blocked kills the process.
#include "stranger.h"

#define CALL(how, set, old) bare_call(SYS_rt_sigprocmask, how, set, old, 8)
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
