/* Calls work() as fast as it can: burst THREADS CALLS [asked]. With "asked" it calls once, says "ready",
   and goes on when it is told to. Says how much of its memory is shared, in KiB. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long calls;

__attribute__((noinline)) void work(long n) { __asm__ volatile("" : : "r"(n) : "memory"); }

static void *run(void *unused) {
    for (long i = 0; i < calls; i++) work(i);
    return unused;
}

static void shared(void) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "RssShmem:", 9)) printf("shared %ld\n", strtol(line + 9, NULL, 10));
    fclose(status);
}

int main(int argc, char **argv) {
    pthread_t threads[64];
    int count = argc > 1 ? atoi(argv[1]) : 1;
    calls = argc > 2 ? atol(argv[2]) : 1;
    if (argc > 3) {
        char line[16];
        work(-1);
        puts("ready");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 1;
    }
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    if (argc > 3) shared();
    puts("done");
    return 0;
}
