// asks: has a program that single-steps itself one trap behind each instruction, by trap as bare? (HIT_1)
// documented p-program-jump stdout: docs/architectures/x86_64.md: and in detours, stubs and trampolines, too (by jump, and at followed returns)
// documented r-program-* stdout: docs/architectures/x86_64.md: and in detours, stubs and trampolines, too (by jump, and at followed returns)
#include "stranger.h"
#include <ucontext.h>

extern char begin[], end[];
static volatile unsigned char seen[256];
static volatile int elsewhere, wrong;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal;
    unsigned long pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP], offset = pc - (unsigned long)begin;
    wrong += info->si_code != TRAP_TRACE || (unsigned long)info->si_addr != pc;
    if (offset < 256) seen[offset]++;
    else elsewhere++;
}

// Pushes, moves, calls, branches and additions.
__asm__(".text\n.type stepped, @function\nstepped: begin: pushfq\n orq $0x100, (%rsp)\n popfq\n push %rbx\n mov %edi, %ebx\n"
        "call inner\n add %ebx, %eax\n lea 1(%rax), %eax\n pop %rbx\n pushfq\n andq $~0x100, (%rsp)\n popfq\n ret\n"
        ".size stepped, . - stepped\n.type inner, @function\ninner: push %rbp\n mov %rsp, %rbp\n imul %edi, %edi\n test %edi, %edi\n"
        "jnz 1f\n ud2\n1: mov %edi, %eax\n leave\n ret\nend: .size inner, . - inner\n");
int stepped(int n);

int main(void) {
    handle(SIGTRAP, handler, 0);
    for (int i = 1; i < 4; i++) printf("%d\n", stepped(i));
    printf("steps:");
    for (int i = 0; i <= end - begin + 1 && i < 256; i++) printf(" %d", seen[i]);
    printf("\nelsewhere %d, wrong %d\n", elsewhere, wrong);
    calls(".", "stepped", 3);
    calls(".", "inner", 3);
    return 0;
}
