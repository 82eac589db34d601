// A handler on an alternate stack of which a known part is left. (HIT_13, sigaltstack(2), MINSIGSTKSZ)
#ifndef LITTLE_ALTSTACK_H
#define LITTLE_ALTSTACK_H
#include "stranger.h"
#include <alloca.h>
#include <sys/auxv.h>

static volatile int fired;
static char *top;
static size_t frame, waste;

FUNCTION static void little(void) { fired++; }

static void handler(int signal) {
    (void)signal;
    if (frame == 0) {
        frame = (size_t)(top - (char *)__builtin_frame_address(0));
        return;
    }
    volatile char *wasted = alloca(waste + 1);
    wasted[0] = 0;
    little();
    getppid();
}

static void on_stack(char *memory, size_t size) {
    stack_t stack = {.ss_sp = memory, .ss_size = size};
    top = memory + size;
    CHECK(sigaltstack(&stack, NULL) == 0);
}

// What the kernel has put there is as much as the processor has state; `spare` bytes are left behind it.
static inline int with_spare(size_t spare) {
    // Whose address the loader finds at the first call, for which the stack may be too small.
    getppid();
    char *memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(memory, 16384, PROT_NONE) == 0);
    memory += 16384;
    on(SIGUSR1, handler, SA_ONSTACK);
    on_stack(memory, 32768);
    raise(SIGUSR1);
    CHECK(frame != 0);
    size_t least = getauxval(AT_MINSIGSTKSZ), legacy = MINSIGSTKSZ, size = frame + spare;
    if (least < legacy) least = legacy;
    if (size < least) size = least;
    waste = size - frame - spare;
    on_stack(memory, size);
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    printf("%d fired\n", fired);
    calls(".", "little", 10);
    return 0;
}
#endif
