// asks: is a program that executes another in its own place, by any function of exec's family, traced on?
// (EVT_1, exec(3))
// argv: 0
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(int argc, char **argv, char **environment) {
    int step = atoi(argv[1]), fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char self[4096], next[8];
    CHECK(argc == 2);
    self[readlink("/proc/self/exe", self, sizeof self - 1)] = 0;
    snprintf(next, sizeof next, "%d", work(step));
    printf("step %d\n", step);
    if (step == 9) calls(".", "work", 10), calls(".", "main", 10);
    fflush(stdout);
    char *arguments[] = {argv[0], next, NULL};
    switch (step) {
    case 0: execv(self, arguments); break;
    case 1: execve(self, arguments, environment); break;
    case 2: execvpe(self, arguments, environment); break;
    case 3: execl(self, self, next, (char *)NULL); break;
    case 4: execle(self, self, next, (char *)NULL, environment); break;
    case 5: execlp(self, self, next, (char *)NULL); break;
    case 6: fexecve(fd, arguments, environment); break;
    case 7: execveat(fd, "", arguments, environment, AT_EMPTY_PATH); break;
    case 8: execveat(AT_FDCWD, self, arguments, environment, 0); break;
    case 9: return 5;
    }
    return 99;
}
