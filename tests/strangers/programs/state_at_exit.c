// asks: does a plain program see the descriptors, masks, dispositions and stacks that it sees bare? (HIT_13)
// short
#include "stranger.h"

int main(void) {
    for (int i = 0; i < 100; i++) getppid();
    calls("libc.so.6", "getppid", 100);
    show_state();
    return 7;
}
