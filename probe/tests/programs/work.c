/* A program to be traced: it does what its first argument says, and prints what came out. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct triple {
    long a, b, c;
};

/* Functions with every kind of argument and result that the ABIs treat in their own ways. */
__attribute__((noinline, noipa)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__attribute__((noinline, noipa)) double mean(double a, float b, int n) { return (a + b) / n; }
__attribute__((noinline, noipa)) struct triple turn(struct triple from) {
    return (struct triple){ from.b, from.c, from.a };
}
__attribute__((noinline, noipa)) uint64_t mix(uint64_t a, uint32_t b, uint64_t c) { return (a ^ b) * 3 + c; }
__attribute__((noinline, noipa)) int sum(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}
static volatile int may_leave = 1;
__attribute__((noinline, noipa)) void leave(jmp_buf out, int depth) {
    if (depth > 0)
        leave(out, depth - 1);
    else if (may_leave)
        longjmp(out, 1);
    __asm__ volatile("");
}

static int by_value(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void calls(void) {
    struct triple t = { 1, 2, 3 };
    for (int i = 0; i < 4; i++)
        t = turn(t);
    printf("%d %.6f %ld%ld%ld %llu %d\n", fib(12), mean(1.5, 2.25f, 3), t.a, t.b, t.c,
           (unsigned long long)mix(1ull << 40, 7, 9), sum(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
    int numbers[200];
    for (int i = 0; i < 200; i++)
        numbers[i] = i * 7919 % 1009;
    qsort(numbers, 200, sizeof *numbers, by_value);
    printf("%d %d %d\n", numbers[0], numbers[100], numbers[199]);
    for (int i = 0; i < 20; i++) {
        jmp_buf out;
        if (setjmp(out) == 0)
            leave(out, 3);
    }
    char text[64];
    snprintf(text, sizeof text, "%a %g %s", 0.1, strtod("1e-3", NULL), strerror(ENOENT));
    puts(text);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long total;

static void *add(void *number) {
    for (int i = 0; i < 100; i++) {
        char *room = malloc(16 + i);
        memset(room, i, 16 + i);
        pthread_mutex_lock(&mutex);
        total += room[15] + (long)(intptr_t)number;
        pthread_mutex_unlock(&mutex);
        free(room);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[8];
    for (intptr_t i = 0; i < 8; i++)
        pthread_create(&all[i], NULL, add, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(all[i], NULL);
    printf("%ld\n", total);
}

static void trapped(int number) {
    static const char said[] = "trapped\n";
    if (number == SIGTRAP && write(1, said, sizeof said - 1) < 0)
        _exit(1);
}

/* Blocks every signal, works, and gets its own SIGTRAP afterwards. */
static void signals(void) {
    sigset_t all;
    sigfillset(&all);
    signal(SIGTRAP, trapped);
    sigprocmask(SIG_BLOCK, &all, NULL);
    printf("%d\n", fib(5));
    fflush(stdout);
    sigprocmask(SIG_UNBLOCK, &all, NULL);
    kill(getpid(), SIGTRAP);
    printf("%d\n", signal(SIGTRAP, SIG_DFL) == trapped);
}

/* A child that calls what its parent calls. */
static void child(void) {
    fflush(stdout);
    pid_t process = fork();
    if (process == 0)
        exit(fib(10) == 55 ? 7 : 1);
    int status;
    waitpid(process, &status, 0);
    printf("%d %d\n", fib(5), WEXITSTATUS(status));
}

__attribute__((noinline, noipa)) void take_text(const char *text, unsigned long len) {
    __asm__ volatile("" : : "r"(text), "r"(len));
}

/* Texts again and again, and some that are longer than what is kept of one. */
static void texts(void) {
    char text[301];
    memset(text, 'x', 300);
    text[300] = 0;
    for (int i = 0; i < 5; i++) {
        take_text("one", 3);
        take_text("two", 3);
        take_text("two", 3);
    }
    take_text("", 0);
    take_text(text, 300);
    text[299] = 'y';
    take_text(text, 300);
    text[232] = 0;
    take_text(text, 232);
    puts("texts");
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "calls") == 0)
        calls();
    else if (strcmp(what, "threads") == 0)
        threads();
    else if (strcmp(what, "signals") == 0)
        signals();
    else if (strcmp(what, "child") == 0)
        child();
    else if (strcmp(what, "texts") == 0)
        texts();
    else
        return 2;
    return 0;
}
