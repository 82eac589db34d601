// asks: is an alternate stack enough that has, behind the kernel's own frame, as much once more and 2 KiB?
// (HIT_13, sigaltstack(2))
#include "little_altstack.h"

int main(void) {
    size_t frame = getauxval(AT_MINSIGSTKSZ);
    // The processor's state in it, as far as the program may use it, is at most 2,696 bytes.
    return with_spare((frame < 4096 ? frame : 4096) + 2048);
}
