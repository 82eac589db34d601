/* Executes itself in its own place, by one function of exec's family after the other, and calls work() in
   each image: execs FIRST LAST. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) void work(long n) { __asm__ volatile("" : : "r"(n) : "memory"); }

int main(int argc, char **argv, char **environment) {
    if (argc != 3) return 2;
    int step = atoi(argv[1]), last = atoi(argv[2]);
    char next[12];
    char *const arguments[] = {argv[0], next, argv[2], NULL};
    work(step);
    if (step == last) {
        puts(getenv("PROBE_TRACE_REGION") ? "seen" : "done");
        return 0;
    }
    snprintf(next, sizeof next, "%d", step + 1);
    int fd = open(argv[0], O_RDONLY | O_CLOEXEC);
    /* In vain, before; an environment that is none is EFAULT. */
    execl("/nowhere/at/all", "x", "y", (char *)NULL);
    char **volatile nowhere = (char **)8;
    char *const bad[] = {(char *)nowhere, NULL};
    if (execve(argv[0], arguments, nowhere) != -1 || errno != EFAULT) return 3;
    if (execveat(AT_FDCWD, argv[0], arguments, bad, 0) != -1 || errno != EFAULT) return 4;
    switch (step) {
    case 0: execl(argv[0], argv[0], next, argv[2], (char *)NULL); break;
    case 1: execle(argv[0], argv[0], next, argv[2], (char *)NULL, environment); break;
    case 2: execlp(argv[0], argv[0], next, argv[2], (char *)NULL); break;
    case 3: execv(argv[0], arguments); break;
    case 4: execve(argv[0], arguments, environment); break;
    case 5: execvp(argv[0], arguments); break;
    case 6: execvpe(argv[0], arguments, environment); break;
    case 7: fexecve(fd, arguments, environment); break;
    case 8: execveat(AT_FDCWD, argv[0], arguments, environment, 0); break;
    case 9: execveat(fd, "", arguments, environment, AT_EMPTY_PATH); break;
    }
    return 1;
}
