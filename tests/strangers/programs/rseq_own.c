// asks: does a restartable sequence of a program that has registered its own area come to its abort handler,
// once for each signal, also where the handler is probed? (REG_20, rseq(2), membarrier(2))
#include "stranger.h"
#include <sys/rseq.h>
#include <sys/time.h>

#define SIGNATURE 0x53053053
static struct rseq own __attribute__((aligned(32)));
static volatile int fired;

FUNCTION static int work(int n) { return n + 1; }

static void handler(int signal) {
    (void)signal;
    fired = work(fired);
}

// Waits in a sequence until a signal aborts it.
FUNCTION static int spins(void) {
    int aborted = 0;
    __asm__ volatile(
        "leaq 9f(%%rip), %%rax\n\tmovq %%rax, 8(%1)\n"
        "3: pause\n\tjmp 3b\n4:\n\tjmp 6f\n"
        ".pushsection __rseq_cs, \"aw\"\n.balign 32\n9: .long 0, 0\n.quad 3b, 4b - 3b, 5f\n.popsection\n"
        ".pushsection __rseq_failure, \"ax\"\n.byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n5: movl $1, %0\n\tjmp 6f\n.popsection\n6:\n"
        : "+r"(aborted) : "r"(&own) : "rax", "memory", "cc");
    return aborted;
}

int main(void) {
    if (__rseq_size == 0) SKIP("rseq");
    struct rseq *libcs = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    CHECK(syscall(SYS_rseq, libcs, 32, RSEQ_FLAG_UNREGISTER, SIGNATURE) == 0);
    CHECK(syscall(SYS_rseq, &own, 32, 0, SIGNATURE) == 0);
    printf("registered, cpu known %d\n", (int)own.cpu_id >= 0);
    on(SIGALRM, handler, 0);
    int aborted = 0;
    for (int i = 0; i < 20; i++) {
        struct itimerval soon = {.it_value = {.tv_usec = 2000}};
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        // Moves to another CPU and preemptions abort it, too.
        for (int before = fired; fired == before;) aborted += spins() != 0 && fired != before;
    }
    printf("aborted %d, fired %d\n", aborted, fired);
    CHECK(syscall(SYS_rseq, &own, 32, RSEQ_FLAG_UNREGISTER, SIGNATURE) == 0);
    CHECK(syscall(SYS_rseq, libcs, 32, 0, SIGNATURE) == 0);
    // MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ
    long registered = syscall(SYS_membarrier, 1 << 8, 0, 0);
    long fenced = syscall(SYS_membarrier, 1 << 7, 0, 0);
    printf("membarrier %ld, %ld\n", registered, fenced);
    calls(".", "work", 20);
    return 0;
}
