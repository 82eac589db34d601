// asks: does a program that the traced one executes see the environment that it was given? (HIT_13,
// execve(2))
// argv: first
#include "stranger.h"

int main(int argc, char **argv, char **environment) {
    (void)argc;
    if (strcmp(argv[1], "first") == 0) {
        char *given[] = {"A=1", "B=2", NULL};
        char *arguments[] = {argv[0], "second", NULL};
        execve("/proc/self/exe", arguments, given);
        return 99;
    }
    for (char **p = environment; *p; p++) printf("%s\n", *p);
    printf("getenv LD_PRELOAD %s, A %s\n", getenv("LD_PRELOAD") ? "is there" : "is not there", getenv("A"));
    show_state();
    return 2;
}
