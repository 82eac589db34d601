// asks: may a program make its own text writable, write it, and take it away, where probes stand? (HIT_1,
// mprotect(2)) short
#include "stranger.h"

// A page of text of its own.
__asm__(".text\n.balign 4096\n.globl island\n.type island, @function\nisland:\n\tmovl $5, %eax\n\tnop\n\tnop\n\tnop\n\tnop\n\tret\n.size island, .-island\n.balign 4096\n");
int island(void);

int main(void) {
    volatile unsigned char *text = (unsigned char *)island;
    int before = island();
    CHECK(mprotect((void *)text, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    int between = island();
    // The operand only: the probe's own bytes are its own business.
    text[5] = 0x90;
    int after = island();
    CHECK(mprotect((void *)text, 4096, PROT_READ | PROT_EXEC) == 0);
    printf("%d %d %d %d\n", before, between, after, island());
    calls(".", "island", 4);
    CHECK(munmap((void *)text, 4096) == 0);
    printf("gone\n");
    return 0;
}
