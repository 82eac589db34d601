/* A program whose functions have the names of a C++ program's, and whose task and strings are hostile to
   terminals. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define KEPT __attribute__((noinline, noipa, used))

KEPT int thrower(int n) __asm__("_Z7throweri");
int thrower(int n) { return n + 1; }
KEPT int over_int(int n) __asm__("_Z4overi");
int over_int(int n) { return n + 2; }
KEPT int over_text(const char *text) __asm__("_Z4overPKc");
int over_text(const char *text) { return text[0]; }
KEPT int member(void *self, int n) __asm__("_ZN2ns1S1fEi");
int member(void *self, int n) { return self != NULL ? n : -n; }
/* The test gives both one name, as two files with a static function each have them. */
KEPT static int helperA(int n) { return n + 3; }
KEPT static int helperB(int n) { return n + 4; }
/* The test puts control characters into this one's name. */
KEPT int evilXXXXXXXXXXname(const char *text) { return text[0]; }

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    prctl(PR_SET_NAME, "t\033[2J\n\302\233\377");
    int sum = thrower(1) + over_int(2) + over_text("x") + member(&sum, 3) + helperA(4) + helperB(5);
    sum += evilXXXXXXXXXXname("a\033[31m\nb\302\233c\342\200\256d\377e");
    while (strcmp(what, "for-ever") == 0)
        sum += thrower(sum);
    printf("%d\n", sum);
    return strcmp(what, "7") == 0 ? 7 : 0;
}
