// asks: do symbol names with escape bytes, bidi controls and bytes that are not UTF-8 hurt, or reach an
// output raw? (EVT_2)
#include "stranger.h"

FUNCTION int red(int n) __asm__("\"red\033[31m\"");
FUNCTION int bell(int n) __asm__("\"bell\007\010\"");
FUNCTION int bidi(int n) __asm__("\"bidi\xe2\x80\xae\"");
FUNCTION int latin(int n) __asm__("\"latin\xff\x9b\"");
FUNCTION int quote(int n) __asm__("\"quote'\t{}*?[\"");
int red(int n) { return n + 1; }
int bell(int n) { return n + 2; }
int bidi(int n) { return n + 3; }
int latin(int n) { return n + 4; }
int quote(int n) { return n + 5; }

int main(void) {
    printf("%d\n", red(bell(bidi(latin(quote(0))))));
    return 0;
}
