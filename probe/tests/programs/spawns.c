/* Starts many short children, one after the other: spawns HOW COUNT. Each calls work(), and so does this
   program before each; with "quiet" only children do: seventy at first, so that the command looks after
   dead threads at once, then COUNT that share this program's memory. */
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__attribute__((noinline)) void work(long n) { __asm__ volatile("" : : "r"(n) : "memory"); }

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    int count = argc > 2 ? atoi(argv[2]) : 1;
    if (!strcmp(how, "child")) {
        work(2);
        return 0;
    }
    int is_quiet = !strcmp(how, "quiet");
    for (int i = 0; is_quiet && i < 70; i++) {
        pid_t pid = fork();
        if (!pid) { work(3); _exit(0); }
        waitpid(pid, NULL, 0);
    }
    for (int i = 0; i < count; i++) {
        char *const child[] = {argv[0], "child", NULL};
        pid_t pid = 0;
        if (is_quiet) usleep(2000);
        else work(0);
        if (!strcmp(how, "fork")) {
            pid = fork();
            if (!pid) { work(1); _exit(0); }
        } else if (!strcmp(how, "vfork") || is_quiet) {
            pid = vfork();
            if (!pid) { work(1); _exit(0); }
        } else if (!strcmp(how, "exec")) {
            pid = vfork();
            if (!pid) { work(1); execv(argv[0], child); _exit(127); }
        } else if (posix_spawn(&pid, argv[0], NULL, NULL, child, environ))
            return 2;
        int status = 0;
        if (waitpid(pid, &status, 0) != pid || status) return 3;
    }
    if (is_quiet) work(4);
    puts("done");
    return 0;
}
