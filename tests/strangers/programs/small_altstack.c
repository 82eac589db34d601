// asks: is an alternate stack of the least size that the kernel takes enough? (HIT_13, sigaltstack(2),
// MINSIGSTKSZ)
#include "stranger.h"
#include <sys/auxv.h>

static volatile int fired;

FUNCTION static void little(void) { fired++; }

static void handler(int signal) {
    (void)signal;
    little();
    getppid();
}

int main(void) {
    // Whose address the loader finds at the first call, for which the stack is too small.
    getppid();
    // What the processor's state takes, and 1,024 bytes for the handler.
    size_t size = getauxval(AT_MINSIGSTKSZ) + 1024;
    char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(memory, 16384, PROT_NONE) == 0);
    stack_t stack = {.ss_sp = memory + 16384, .ss_size = size};
    CHECK(sigaltstack(&stack, NULL) == 0);
    on(SIGUSR1, handler, SA_ONSTACK);
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    printf("%d fired\n", fired);
    calls(".", "little", 10);
    return 0;
}
