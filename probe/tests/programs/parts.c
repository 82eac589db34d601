/* A program with a part that is jumped to, and a start that no call comes to: what it prints depends on
   both. */
#include <stdio.h>
#include <stdlib.h>

static int failures;

__attribute__((noinline, cold)) static void failed(const char *what, int n) {
    failures += n;
    fprintf(stderr, "%s %d\n", what, n);
}

/* The unlikely half is kept apart by gcc and calls with the frame of the other half. */
__attribute__((noinline, noipa)) int work(int n, const char *what) {
    char room[64];
    snprintf(room, sizeof room, "%s%d", what, n);
    int sum = atoi(room + 1);
    if (__builtin_expect(sum % 7 == 3, 0)) {
        failed(room, sum);
        failed(what, sum + 1);
        sum += room[0] + failures;
    }
    return sum + n;
}

int main(int argc, char **argv) {
    int sum = 0;
    for (int i = 0; i < 100; i++)
        sum += work(i, argc > 1 ? argv[1] : "x");
    printf("%d of %d\n", sum, argc);
    return 0;
}
