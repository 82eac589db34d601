// asks: does a daemon (two forks, setsid, descriptors closed) live and end as bare, while its parent goes?
// (daemon(7)) short
#include "stranger.h"

int main(void) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        CHECK(chdir("/") == 0);
        umask(0);
        close(0), close(1), close(2);
        for (int i = 3; i < 20; i++)
            if (i != pipes[1]) close(i);
        char *some = malloc(100000);
        memset(some, 1, 100000);
        int ok = getsid(0) != getpid() && some[99999] == 1;
        if (write(pipes[1], ok ? "daemon is well" : "daemon is not!", 14) != 14) _exit(2);
        _exit(0);
    }
    close(pipes[1]);
    show_child("first child", pid);
    char text[32] = "";
    ssize_t got = read(pipes[0], text, 31);
    printf("%zd %s\n", got, text);
    return read(pipes[0], text, 31) == 0 ? 6 : 7;
}
