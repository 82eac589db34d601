// asks: do ID and NT, which POPF sets, stay set through probed functions? (HIT_11, Intel SDM POPF)
#include "stranger.h"

#define NT 0x4000ul
#define ID 0x200000ul
#define AC 0x40000ul

FUNCTION static unsigned long flags(void) {
    unsigned long value;
    __asm__ volatile("pushfq\n\tpopq %0" : "=r"(value)::"memory");
    return value;
}

FUNCTION static void set(unsigned long value) { __asm__ volatile("pushq %0\n\tpopfq" ::"r"(value) : "cc", "memory"); }

int main(void) {
    unsigned long bits[] = {NT, ID, NT | ID};
    for (int i = 0; i < 3; i++) {
        unsigned long before = flags();
        set(before | bits[i]);
        unsigned long first = flags(), second = flags();
        set(before & ~(NT | ID | AC));
        printf("%lx: %lx %lx\n", bits[i], first & (NT | ID | AC), second & (NT | ID | AC));
    }
    return 0;
}
