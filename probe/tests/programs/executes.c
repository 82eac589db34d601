/* Executes a program in a child, in one of several ways, and tells how the child has ended:
   executes HOW PROGRAM [USER]. As `executes tell` it says what it finds of a tracer in its environment, and
   calls work() thrice. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__attribute__((noinline)) void work(long n) { __asm__ volatile("" : : "r"(n) : "memory"); }

__attribute__((constructor)) static void first(void) {
    work(7);
}

static int tell(void) {
    const char *preload = getenv("LD_PRELOAD");
    for (long n = 0; n < 3; n++) work(n);
    printf("%s %s\n", preload ? preload : "bare", getenv("PROBE_TRACE_REGION") ? "seen" : "alone");
    return 5;
}

/* How many pages the process has in memory. */
static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1) exit(3);
    fclose(file);
    return pages;
}

/* Whether executions that fail, of a program whose argument is too long, fill the memory. */
static int many(char *path) {
    static char argument[1 << 20];
    memset(argument, 'a', sizeof argument - 1);
    char *const arguments[] = {path, argument, NULL};
    execve(path, arguments, environ);
    long before = resident();
    for (int n = 0; n < 5000; n++) execve(path, arguments, environ);
    printf("%s\n", resident() - before > 256 ? "more" : "as before");
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "tell")) return tell();
    if (argc < 3 || (argc > 3 && setuid(atoi(argv[3])))) return 2;
    const char *how = argv[1];
    char *path = argv[2], *const arguments[] = {path, "tell", NULL};
    int fd = open(path, O_PATH | O_CLOEXEC), status = -1;
    pid_t child;
    work(9);
    if (!strcmp(how, "many")) return many(path);
    if (!strcmp(how, "spawn")) {
        if (posix_spawn(&child, path, NULL, NULL, arguments, environ)) child = -1;
    } else if (!(child = !strcmp(how, "vfork") ? vfork() : fork())) {
        if (!strcmp(how, "execl")) execl(path, path, "tell", (char *)NULL);
        if (!strcmp(how, "execvp")) execvp(path, arguments);
        if (!strcmp(how, "fexecve")) fexecve(fd, arguments, environ);
#ifdef __GLIBC__
        if (!strcmp(how, "execveat")) execveat(fd, "", arguments, environ, AT_EMPTY_PATH);
#endif
        if (!strcmp(how, "full")) {
            struct rlimit few;
            getrlimit(RLIMIT_NOFILE, &few);
            few.rlim_cur = 64;
            setrlimit(RLIMIT_NOFILE, &few);
            while (open("/", O_PATH | O_CLOEXEC) >= 0) {}
        }
        if (!strcmp(how, "execve") || !strcmp(how, "full") || !strcmp(how, "vfork")) execve(path, arguments, environ);
        _exit(99);
    }
    waitpid(child, &status, 0);
    printf("%x\n", status);
    return 0;
}
