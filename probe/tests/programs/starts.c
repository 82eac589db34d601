/* A program that no dynamic linker of glibc's starts: what it does before `main` and in threads. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

__attribute__((noinline)) long work(long n) {
    __asm__ volatile("");
    return 3 * n + 1;
}

__attribute__((constructor)) static void early(void) {
    for (int i = 0; i < 7; i++)
        if (work(i) != 3 * i + 1)
            abort();
}

static void *works(void *sum) {
    for (int i = 0; i < 1000; i++)
        *(long *)sum += work(i);
    return NULL;
}

/* What of a tracer could be seen. */
static void show(void) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    printf("SIGTRAP %d SIGUSR1 %d\n", sigismember(&blocked, SIGTRAP), sigismember(&blocked, SIGUSR1));
    /* It fails, and libc says why without asking where `errno` is. */
    syscall(SYS_rt_sigprocmask, 77, &blocked, NULL, 8);
    printf("%m\n");
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "TracerPid", 9) || !strncmp(line, "SigIgn", 6) || !strncmp(line, "Threads", 7))
            fputs(line, stdout);
    fclose(status);
    DIR *files = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(files))
        count++;
    closedir(files);
    printf("%d descriptors\n", count);
    for (char **variable = environ; *variable; variable++)
        puts(*variable);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "show")) {
        show();
        return 0;
    }
    if (count > 1)
        raise(atoi(arguments[1]));
    pthread_t threads[4];
    long sums[4] = {0};
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, works, &sums[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%ld\n", sums[0] + sums[1] + sums[2] + sums[3]);
    return 7;
}
