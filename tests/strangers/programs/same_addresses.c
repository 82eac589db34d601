// asks: does a program that executes itself without randomised addresses get what it asks for?
// (personality(2))
// argv: first
#include "stranger.h"
#include <sys/personality.h>

static int data;
int main(int argc, char **argv) {
    (void)argc;
    if (strcmp(argv[1], "first") == 0) {
        CHECK(personality(ADDR_NO_RANDOMIZE) >= 0);
        execl("/proc/self/exe", argv[0], "second", (char *)NULL);
        return 99;
    }
    int here;
    printf("persona %x\n", (unsigned)personality(0xffffffff));
    // Where the kernel puts them then.
    printf("text %d, stack %d\n", ((unsigned long)&data >> 40) == 0x55, ((unsigned long)&here >> 40) == 0x7f);
    void *low = mmap((void *)0x10000000, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("low %d\n", low == (void *)0x10000000);
    return 4;
}
