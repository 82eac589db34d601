// asks: does a function whose first instruction is POPF set what POPF sets: ID, NT, and none that it may not?
// (HIT_11, Intel SDM POPF)
#include "stranger.h"

// The flags lie where a return address is elsewhere, and below them the way back.
__asm__(".text\n.type set_flags, @function\nset_flags:\n.cfi_startproc\n.cfi_def_cfa_offset 16\npopfq\n.cfi_def_cfa_offset 8\npushfq\npopq %rax\nret\n.cfi_endproc\n.size set_flags, .-set_flags\n");

static unsigned long after(unsigned long flags) {
    unsigned long answer;
    __asm__ volatile("subq $128, %%rsp\n\tleaq 1f(%%rip), %%rax\n\tpushq %%rax\n\tpushq %1\n\tjmp set_flags\n1:\tpushq $0x202\n\tpopfq\n\taddq $128, %%rsp" : "=&a"(answer) : "r"(flags) : "memory", "cc");
    return answer;
}

int main(void) {
    static const unsigned long bits[] = {0x4000, 0x200000, 0x204000, 0x8d5, 0x400, 0x10000, 0x20000, 0x80000, 0x3000};
    for (unsigned i = 0; i < sizeof bits / sizeof *bits; i++) printf("%lx: %lx\n", bits[i], after(0x202 | bits[i]));
    return 0;
}
