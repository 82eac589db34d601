// asks: may a thread that libc does not know, with a thread pointer of its own, call probed functions?
// (HIT_4, HIT_13, clone(2) CLONE_SETTLS, arch_prctl(2))
// documented *-program-* status,stdout,calls: host-linux/README.md: A thread that has a thread pointer of its own, which libc has not set up (`clone` without libc, `arch_prctl`), must not run into a probe
// cc: -fno-stack-protector
#include "stranger.h"
#include <linux/futex.h>

// As a runtime of another language has them: nothing of libc's is behind the thread pointer.
static char tls[4][4096] __attribute__((aligned(64)));
static volatile int ends[4];
static volatile long sums[4];

FUNCTION static long work(long n) { return n * 3 + 1; }

__attribute__((noinline, used)) static void body(long index) {
    long sum = 0;
    for (long i = 0; i < 1000; i++) sum += work(i);
    sums[index] = sum;
    bare_call(SYS_exit, 0, 0, 0, 0);
    __builtin_unreachable();
}

static void start(long index, char *stack) {
    long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_CHILD_CLEARTID;
    *(void **)&tls[index][2048] = &tls[index][2048];
    *(long *)(stack - 16) = index;
    ends[index] = 1;
    register long r10 __asm__("r10") = (long)&ends[index];
    register long r8 __asm__("r8") = (long)&tls[index][2048];
    long answer;
    __asm__ volatile("syscall\n\ttest %%eax, %%eax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tmov (%%rsp), %%rdi\n\tcall body\n1:"
                     : "=a"(answer) : "a"(SYS_clone), "D"(flags), "S"(stack - 16), "d"(0L), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    CHECK(answer > 0);
}

int main(void) {
    for (long i = 0; i < 4; i++) {
        char *stack = mmap(NULL, 262144, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED);
        start(i, stack + 262144);
    }
    for (int i = 0; i < 4; i++)
        while (ends[i]) syscall(SYS_futex, &ends[i], FUTEX_WAIT, 1, NULL, NULL, 0);
    for (int i = 0; i < 4; i++) printf("%ld ", sums[i]);
    printf("\n");
    calls(".", "work", 4000);
    return 0;
}
