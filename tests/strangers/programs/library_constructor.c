// asks: is what the constructor of a library that the program is linked with calls counted, or named as
// missed? (EVT_1)
// library: -fvisibility=default
// cc: LIBRARY -Wl,-rpath,$ORIGIN
#include "stranger.h"

#ifdef LIBRARY
static int early;
__attribute__((constructor)) static void begin(void) {
    for (int i = 0; i < 10; i++) early += getppid() != 0;
}
int early_calls(void) { return early; }
#else
int early_calls(void);
FUNCTION static int work(int n) { return n + 1; }
static int before;
__attribute__((constructor)) static void begin(void) { before = work(work(0)); }
__attribute__((destructor)) static void end(void) { before = work(before); }

int main(void) {
    printf("%d in the library, %d before main\n", early_calls(), before);
    calls("libc.so.6", "getppid", 10);
    calls(".", "work", 3);
    calls(".", "begin", 1);
    calls(".", "end", 1);
    return 0;
}
#endif
