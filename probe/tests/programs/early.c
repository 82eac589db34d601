/* With -DLIBRARY the library: its constructor and its destructor call lwork(), and so does each of the
   program's. */
#include <stdio.h>

#ifdef LIBRARY
__attribute__((noinline)) void lwork(long n) { __asm__ volatile("" : : "r"(n) : "memory"); }
__attribute__((constructor)) static void begin(void) { lwork(2); }
__attribute__((destructor)) static void end(void) { lwork(6); }
#else
void lwork(long n);
static void first(void) { lwork(1); }
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = first;
__attribute__((constructor)) static void begin(void) { lwork(3); }
__attribute__((destructor)) static void end(void) { lwork(5); }
int main(void) {
    lwork(4);
    puts("done");
    return 0;
}
#endif
