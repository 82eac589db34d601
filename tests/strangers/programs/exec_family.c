// asks: is a program that is executed by any function of exec's family traced, and given its arguments?
// (EVT_1, exec(3), posix_spawn(3))
// probe: -f
// argv: all
// short
#include "stranger.h"
#include <spawn.h>

FUNCTION static int work(int n) { return n + 1; }

static void execute(int how, char *self, char **environment) {
    char *arguments[] = {self, "executed", NULL};
    int fd = open("/proc/self/exe", O_RDONLY);
    switch (how) {
    case 0: execv(self, arguments); break;
    case 1: execve(self, arguments, environment); break;
    case 2: execvp(self, arguments); break;
    case 3: execvpe(self, arguments, environment); break;
    case 4: execl(self, self, "executed", (char *)NULL); break;
    case 5: execle(self, self, "executed", (char *)NULL, environment); break;
    case 6: execlp(self, self, "executed", (char *)NULL); break;
    case 7: fexecve(fd, arguments, environment); break;
    case 8: execveat(fd, "", arguments, environment, AT_EMPTY_PATH); break;
    case 9: execveat(AT_FDCWD, self, arguments, environment, 0); break;
    case 10: syscall(SYS_execve, self, arguments, environment); break;
    }
}

int main(int argc, char **argv, char **environment) {
    if (strcmp(argv[1], "executed") == 0) return work(argc + 4);
    for (int how = 0; how < 11; how++) {
        pid_t pid = fork();
        if (pid == 0) {
            execute(how, argv[0], environment);
            _exit(99);
        }
        printf("%d ", how);
        show_child("child", pid);
    }
    char *arguments[] = {argv[0], "executed", NULL};
    pid_t pid;
    CHECK(posix_spawn(&pid, argv[0], NULL, NULL, arguments, environment) == 0);
    show_child("posix_spawn", pid);
    CHECK(posix_spawnp(&pid, argv[0], NULL, NULL, arguments, environment) == 0);
    show_child("posix_spawnp", pid);
    calls(".", "work", 13);
    return 0;
}
