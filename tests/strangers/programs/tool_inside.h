// A program that starts a tool on itself, and shows what the tool says of it, in lines that no run changes.
#include "stranger.h"
#include <sys/ptrace.h>

FUNCTION int work(int n) { return n * 3 + 1; }

static int inner(void) {
    int n = 0;
    for (int i = 0; i < 5; i++) n = work(n) + (getppid() == 0);
    void *all[8];
    for (int i = 0; i < 8; i++) all[i] = malloc(100 + (unsigned)i);
    for (int i = 0; i < 8; i++) free(all[i]);
    pid_t pid = fork();
    if (pid == 0) _exit(work(1));
    show_child("child", pid);
    raise(SIGURG);
    printf("sum %d\n", n);
    return 21;
}

// Whether a program is where the runner's PATH leads.
static inline int has_tool(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/usr/bin/%s", name);
    return access(path, X_OK) == 0;
}

// Runs `words`, and shows those of its lines on standard output, and on standard error, that begin with one
// of `wanted`.
static inline void show_lines(char *const *words, const char *const *wanted) {
    int pipes[2];
    CHECK(pipe2(pipes, O_CLOEXEC) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], 1);
        dup2(pipes[1], 2);
        execvp(words[0], words);
        _exit(97);
    }
    close(pipes[1]);
    FILE *said = fdopen(pipes[0], "r");
    char line[512];
    while (fgets(line, sizeof line, said))
        for (const char *const *one = wanted; *one; one++) {
            char *found = strstr(line, *one);
            if (found) fputs(found, stdout);
            if (found) break;
        }
    fclose(said);
    show_child(words[0], pid);
}
