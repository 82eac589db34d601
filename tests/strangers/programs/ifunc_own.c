// asks: do a function that is chosen when the program starts, and its resolver, do what they do bare?
// (REG_19, IFUNC) short
#include "stranger.h"

FUNCTION static int work(int n) { return n + 2; }
FUNCTION static int first(int n) { return n + 1; }
FUNCTION static int second(int n) { return work(n); }
static int resolved;
typedef int function(int);
__attribute__((used)) static function *resolve(void) {
    __builtin_cpu_init();
    resolved++;
    return __builtin_cpu_supports("sse2") ? second : first;
}
int chosen(int n) __attribute__((ifunc("resolve")));

int main(void) {
    int n = 0;
    for (int i = 0; i < 100; i++) n = chosen(n);
    // The C library's own.
    char text[64];
    memset(text, 'x', 63);
    text[63] = 0;
    function *volatile pointer = chosen;
    printf("%d, %zu, %d, %d\n", n, strlen(text), pointer(1), pointer == chosen);
    calls(".", "work", 101);
    return 0;
}
