// asks: is a tree of 63 forks followed to its last leaf, each hit once and in its own process's name? (EVT_1,
// fork(2))
// probe: -f
// short
#include "stranger.h"

FUNCTION static int leaf(int n) { return n + 1; }

static int grow(int depth) {
    if (depth == 0) return leaf(0);
    int sum = 0;
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) _exit(grow(depth - 1));
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        sum += WEXITSTATUS(status);
    }
    return sum;
}

int main(void) {
    printf("%d\n", grow(5));
    calls(".", "leaf", 32);
    return 0;
}
