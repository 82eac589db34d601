// asks: do names of tasks with escape bytes, and ones that are not UTF-8, come through? (EVT_2, prctl(2)
// PR_SET_NAME) short
#include "stranger.h"

FUNCTION static int work(int n) { return n + 1; }

int main(void) {
    static const char *const names[] = {"\033[31mred", "two\nlines", "\xff\xfe\x9b", "", "\"}{\\", "0123456789abcdefghij"};
    int n = 0;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK(prctl(PR_SET_NAME, names[i]) == 0);
        n = work(n);
        getppid();
        char got[17] = "";
        prctl(PR_GET_NAME, got);
        for (char *p = got; *p; p++) printf("%02x", (unsigned char)*p);
        printf("\n");
    }
    calls(".", "work", 6);
    calls("libc.so.6", "getppid", 6);
    return 0;
}
