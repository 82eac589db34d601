/* A function that begins with a label of assembly whose name is shorter. */
__attribute__((noinline)) void measure(void) { __asm__ volatile("at: nop" : : : "memory"); }

int main(void) {
    measure();
    return 0;
}
