/* What compilers and people make on riscv64: instructions of two and four bytes, atomics by LR and SC,
   functions shorter than a jump, branches into what a jump would displace, a call by t0, an instruction
   across two pages; with a timer's signals, jumps out of functions, faults, coroutines, threads and
   children around them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

static uint8_t bytes[8];
static uint16_t halves[4];
static uint64_t word, swapped;

APART void add_byte(int i) { __atomic_fetch_add(&bytes[i & 7], 3, __ATOMIC_SEQ_CST); }
APART void xor_half(int i) { __atomic_fetch_xor(&halves[i & 3], 0x1234 + i, __ATOMIC_ACQ_REL); }
APART void nand_word(int i) { __atomic_fetch_nand(&word, i, __ATOMIC_RELAXED); }
APART void swap_word(uint64_t *at, uint64_t more) {
    uint64_t old = *at;
    while (!__atomic_compare_exchange_n(at, &old, old + more, 1, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {}
}

#define FUNCTION(name, text) \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" text "\n.size " #name ", . - " #name "\n"); \
    long name(long n)

FUNCTION(two_bytes, "c.jr ra");
FUNCTION(four_bytes, "c.addi a0, 1\n c.jr ra");
FUNCTION(back_to_its_start, "c.addi a0, -1\n c.bnez a0, back_to_its_start\n c.jr ra");
FUNCTION(into_its_second, "c.j 2f\n1: c.addi a0, 5\n c.jr ra\n2: c.addi a0, 1\n c.bnez a0, 1b\n c.jr ra");
FUNCTION(links_what_it_reads, "c.mv t1, ra\n auipc t0, 0\n jalr t0, 12(t0)\n c.addi a0, 1\n c.nop\n c.addi a0, 2\n c.jr t1");
FUNCTION(saves_by_t0, "c.addi sp, -16\n sd ra, 8(sp)\n c.jr t0");
FUNCTION(called_by_t0, "jal t0, saves_by_t0\n c.addi a0, 11\n ld ra, 8(sp)\n c.addi sp, 16\n c.jr ra");
/* The page ends in the middle of `addi a0, a0, 7`. */
__asm__(".balign 4096\n .rept 2043\n c.nop\n .endr\n");
FUNCTION(across_pages, "c.addi a0, 1\n c.addi a0, 2\n c.li a1, 3\n c.nop\n .option push\n .option norvc\n addi a0, a0, 7\n"
                       " .option pop\n c.bnez a1, 1f\n c.addi a0, 9\n1: c.jr ra");

struct large {
    double d[4];
    long l[2];
};
APART struct large large(double a, float b, long c, long d, long e, long f, long g, long h, long i, long j) {
    return (struct large){{a, b, a * b, a - b}, {c + d + e + f, g * h + i - j}};
}
APART long variadic(int count, ...) {
    va_list list;
    long sum = 0;
    va_start(list, count);
    while (count--) sum = sum * 31 + va_arg(list, long);
    va_end(list);
    return sum;
}
APART long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
APART long switched(long n) {
    switch (n % 7) {
    case 0: return n * 3;
    case 1: return n ^ 5;
    case 2: return n - 7;
    case 3: return n << 2;
    case 4: return ~n;
    case 5: return n / 3;
    default: return n | 64;
    }
}
APART long tail(long n) { return switched(n + 2); }

static jmp_buf out;
static sigjmp_buf out_of_fault;
APART void deep(int n) {
    if (n == 0) longjmp(out, 7);
    if (n < 100) deep(n - 1);
    bytes[0] += n > 100;
}
APART int jumps_out(int n) {
    int result = setjmp(out);
    if (!result) deep(n);
    return result;
}
static volatile sig_atomic_t ticks;
APART long in_handler(long n) { return n * 3 + 1; }
static void on_tick(int signal) { ticks += in_handler(signal) + four_bytes(1) > 0; }
static void on_fault(int signal) { siglongjmp(out_of_fault, signal); }
APART long load(volatile long *at) { return *at; }
APART int faults(void) {
    int result = sigsetjmp(out_of_fault, 1);
    if (!result) load((long *)8);
    return result;
}

static ucontext_t here, there;
static long switches = 1;
static void coroutine(int n) {
    for (int i = 0; i < 3; i++) {
        switches = switches * 7 + tail(n + i);
        swapcontext(&there, &here);
    }
}
APART long coroutines(void) {
    static char stack[65536];
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    there.uc_link = &here;
    makecontext(&there, (void (*)(void))coroutine, 1, 5);
    for (int i = 0; i < 4; i++) swapcontext(&here, &there);
    return switches;
}
static void *thread(void *argument) {
    long sum = (long)argument;
    for (int i = 0; i < 100; i++) {
        add_byte(i), xor_half(i), nand_word(i), swap_word(&swapped, 2);
        sum = sum * 5 + tail(i) + four_bytes(i) + into_its_second(i);
    }
    return (void *)sum;
}
APART int children(void) {
    int first, second;
    pid_t child = vfork();
    if (!child) _exit(5);
    waitpid(child, &first, 0);
    child = fork();
    if (!child) _exit(fib(5));
    waitpid(child, &second, 0);
    return WEXITSTATUS(first) * 10 + WEXITSTATUS(second);
}

static void install(int signal, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(signal, &action, NULL);
}

int main(void) {
    install(SIGALRM, on_tick, SA_RESTART);
    install(SIGSEGV, on_fault, SA_NODEFER);
    struct itimerval timer = {{0, 20000}, {0, 20000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    printf("short %ld %ld %ld %ld %ld\n", two_bytes(4), four_bytes(5), back_to_its_start(9), into_its_second(3), into_its_second(-1));
    printf("links %ld %ld, pages %ld\n", links_what_it_reads(1), called_by_t0(6), across_pages(2));
    struct large made = large(1.5, 2.25f, 1, 2, 3, 4, 5, 6, 7, 8);
    printf("passed %g %g %ld %ld %ld\n", made.d[2], made.d[3], made.l[0], made.l[1], variadic(11, 1L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L, 10L, 11L));
    printf("calls %ld %ld, out %d %d, fault %d %d\n", fib(12), tail(9), jumps_out(0), jumps_out(12), faults(), faults());
    printf("coroutines %ld\n", coroutines());
    pthread_t threads[4];
    long all = 0;
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int i = 0; i < 4; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        all ^= (long)sum;
    }
    for (int i = 0; i < 8; i++) all = all * 7 + bytes[i] + halves[i & 3];
    printf("threads %ld %lu\n", all, swapped);
    printf("children %d\n", children());
    return 0;
}
