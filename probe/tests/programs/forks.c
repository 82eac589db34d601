/* Forks, starts and executes programs at each line of its input, and says what they have ended with. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { CALLS = 100 };

__attribute__((noinline)) long work(long n) {
    __asm__ volatile("");
    return n * 3 + 1;
}

static int works(void) {
    for (long n = 0; n < CALLS; n++)
        if (work(n) != n * 3 + 1)
            return 1;
    return 7;
}

static void ended(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

int main(int argc, char **argv) {
    char line[64];
    if (argc > 1)
        return works();
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        char *own[] = {argv[0], "child", NULL};
        pid_t child = 0;
        if (!strcmp(line, "fork\n")) {
            child = fork();
            if (!child)
                _exit(works());
            ended(child);
        } else if (!strcmp(line, "grandchild\n")) {
            child = fork();
            if (!child) {
                int status = 0;
                pid_t grandchild = fork();
                if (!grandchild)
                    _exit(works());
                waitpid(grandchild, &status, 0);
                _exit(works() + WEXITSTATUS(status));
            }
            ended(child);
        } else if (!strcmp(line, "vfork\n")) {
            child = vfork();
            if (!child) {
                execv("/proc/self/exe", own);
                _exit(99);
            }
            ended(child);
        } else if (!strcmp(line, "spawn\n")) {
            if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, own, environ))
                child = -1;
            ended(child);
        } else if (!strcmp(line, "stay\n")) {
            /* A child that stays, and works whenever it is told by a signal. */
            child = fork();
            if (!child) {
                setpgid(0, 0);
                for (;;)
                    pause();
            }
            printf("child %d\n", child);
        }
    }
    return 0;
}
