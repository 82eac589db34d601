// asks: is an alternate stack with 1,024 bytes behind the kernel's own frame enough? (HIT_13, sigaltstack(2),
// MINSIGSTKSZ)
// documented p-*-jump status,stdout,calls: host-linux/README.md: A hit by a jump and a return by a stub run on the stack that they interrupt
// documented r-* status,stdout,calls: host-linux/README.md: A hit by a jump and a return by a stub run on the stack that they interrupt
#include "little_altstack.h"

int main(void) { return with_spare(1024); }
