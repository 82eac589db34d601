// asks: does a profiler's timer of 200 µs, setitimer's and timer_create's, disturb nothing? (HIT_12,
// timer_create(2))
// events: no
#include "stranger.h"
#include <sys/time.h>
#include <time.h>

static volatile sig_atomic_t fired;
static void handler(int signal) { (void)signal; fired = 1; }

FUNCTION static unsigned work(unsigned n) { return n * 1103515245u + 12345u; }

int main(void) {
    on(SIGPROF, handler, SA_RESTART);
    on(SIGALRM, handler, SA_RESTART | SA_ONSTACK);
    struct itimerval every = {{0, 200}, {0, 200}};
    CHECK(setitimer(ITIMER_PROF, &every, NULL) == 0);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    struct itimerspec often = {{0, 300000}, {0, 300000}};
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    unsigned n = 1;
    for (int i = 0; i < 20000; i++) n = work(n), getppid();
    timer_delete(timer);
    every = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_PROF, &every, NULL);
    printf("%u\n", n);
    calls(".", "work", 20000);
    calls("libc.so.6", "getppid", 20000);
    return 0;
}
