// asks: is each of a hundred short vforked children followed, and each hit of it counted? (EVT_1, vfork(2))
// probe: -f
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    volatile int n = 0;
    for (int i = 0; i < 100; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            n = work(n);
            _exit(getppid() ? 4 : 5);
        }
        int status = 0;
        CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 4);
    }
    printf("%d\n", n);
    calls(".", "work", 100);
    calls("libc.so.6", "getppid", 100);
    show_state();
    return 0;
}
