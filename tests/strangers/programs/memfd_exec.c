// asks: is a program that is executed from a memfd, by fexecve and execveat, followed as bare? (execveat(2))
// probe: -f
// argv: first
#include "stranger.h"

int main(int argc, char **argv, char **environment) {
    (void)argc;
    if (strcmp(argv[1], "first") != 0) {
        printf("%s: %d\n", argv[1], getppid() != 0);
        show_descriptors();
        return 5;
    }
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = memfd_create("copy", MFD_CLOEXEC);
    char bytes[65536];
    ssize_t got;
    while ((got = read(from, bytes, sizeof bytes)) > 0) CHECK(write(to, bytes, (size_t)got) == got);
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        char *arguments[] = {argv[0], i ? "execveat" : "fexecve", NULL};
        if (pid == 0) {
            if (i) syscall(SYS_execveat, to, "", arguments, environment, AT_EMPTY_PATH);
            else fexecve(to, arguments, environment);
            _exit(99);
        }
        show_child("child", pid);
    }
    return 0;
}
