// asks: is each of four spawned programs followed to its end, and each hit of it counted? (EVT_1,
// posix_spawn(3))
// probe: -f
// argv: parent
#include "stranger.h"
#include <spawn.h>

FUNCTION static int work(int n) { return n + 1; }

int main(int argc, char **argv, char **environment) {
    (void)argc;
    if (strcmp(argv[1], "child") == 0) return work(work(1));
    char *arguments[] = {argv[0], "child", NULL};
    for (int i = 0; i < 4; i++) {
        pid_t pid;
        int status = 0;
        CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environment) == 0);
        CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
    }
    printf("done\n");
    calls(".", "work", 8);
    calls(".", "main", 5);
    return 0;
}
