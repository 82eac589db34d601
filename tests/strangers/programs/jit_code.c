// asks: does code that a program makes, and calls probed functions from, and makes anew, run? (HIT_1,
// mmap(2)) short
#include "stranger.h"

FUNCTION int work(int n) { return n + 1; }

int main(void) {
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    long sum = 0;
    for (int i = 0; i < 100; i++) {
        // sub $8, %rsp; mov $i, %edi; movabs $work, %rax; call *%rax; add $8, %rsp; ret
        unsigned char made[] = {0x48, 0x83, 0xec, 8, 0xbf, (unsigned char)i, 0, 0, 0, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0,
            0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
        int (*target)(int) = work;
        memcpy(made + 11, &target, 8);
        memcpy(code, made, sizeof made);
        sum += ((int (*)(void))(void *)code)();
    }
    printf("%ld\n", sum);
    calls(".", "work", 100);
    return 0;
}
