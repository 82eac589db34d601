/* Executes PROGRAM with an argument that is too long, and stops: refused PROGRAM. A child continues it after
   a while. Ends with 0 if it has not gone on before. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int main(int argc, char **argv) {
    enum { LEN = 1 << 20 };
    if (argc < 2) return 2;
    char *much = malloc(LEN + 1), *const arguments[] = {argv[1], much, NULL};
    long long continued, gone_on;
    int to[2], from[2];
    memset(much, 'x', LEN), much[LEN] = 0;
    if (pipe(to) || pipe(from)) return 3;
    pid_t child = fork();
    if (!child) {
        char byte;
        if (read(to[0], &byte, 1) != 1) return 4;
        usleep(300000);
        continued = now();
        if (write(from[1], &continued, sizeof continued) != sizeof continued) return 5;
        for (;;) kill(getppid(), SIGCONT), usleep(10000);
    }
    execve(argv[1], arguments, environ);
    if (errno != E2BIG || write(to[1], "", 1) != 1) return 6;
    raise(SIGSTOP);
    gone_on = now();
    if (read(from[0], &continued, sizeof continued) != sizeof continued) return 7;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return gone_on < continued;
}
