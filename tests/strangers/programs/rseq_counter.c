// asks: does a per-CPU counter in restartable sequences lose no update where probes stand? (REG_20, rseq(2))
// events: no
#include "stranger.h"
#include <sys/rseq.h>

static struct { volatile long count; char pad[56]; } counts[1024];

// rseq's own example: load, add, store; aborted, and tried again, when the thread is moved in between.
FUNCTION static void increment(void) {
    struct rseq *self = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    __asm__ goto volatile(
        "1: leaq 9f(%%rip), %%rax\n\tmovq %%rax, 8(%0)\n"
        "3: movl 4(%0), %%eax\n\tshlq $6, %%rax\n\taddq %1, %%rax\n\tincq (%%rax)\n"
        "4: jmp %l[done]\n"
        ".pushsection __rseq_cs, \"aw\"\n.balign 32\n9: .long 0, 0\n.quad 3b, 4b - 3b, 5f\n.popsection\n"
        ".pushsection __rseq_failure, \"ax\"\n.byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n5: jmp 1b\n.popsection\n"
        : : "r"(self), "r"(counts) : "rax", "memory", "cc" : done);
done:
    return;
}

enum { THREADS = 4, ROUNDS = 50000 };
static void *thread(void *argument) {
    for (int i = 0; i < ROUNDS; i++) increment();
    return argument;
}

int main(void) {
    if (__rseq_size == 0) SKIP("rseq");
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&ids[i], NULL, thread, NULL) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
    long sum = 0;
    for (int i = 0; i < 1024; i++) sum += counts[i].count;
    printf("%ld\n", sum);
    calls(".", "increment", THREADS * ROUNDS);
    return 0;
}
