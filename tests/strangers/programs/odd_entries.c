// asks: do functions whose first instruction is an odd one do what they do bare? (HIT_11)
// short
#include "stranger.h"

#define ODD(name, code) __asm__(".text\n.balign 16\n.type " #name ", @function\n" #name ":\n" code "\n.size " #name ", .-" #name "\n");
#define C(name) long name(long, long) __asm__(#name)
ODD(odd_push_rsp, "pushq %rsp\npopq %rax\nsubq %rsp, %rax\nret")
ODD(odd_call_next, "call 1f\n1: popq %rax\nleaq odd_call_next(%rip), %rcx\nsubq %rcx, %rax\nret")
ODD(odd_jmp, "jmp 1f\nud2\n1: leaq 3(%rdi), %rax\nret")
ODD(odd_jrcxz, "jrcxz 1f\n1: movl $7, %eax\nret")
ODD(odd_movsb, "rep movsb\nmovq %rcx, %rax\nret")
ODD(odd_riprel, "movq 1f(%rip), %rax\nret\n1: .quad 77")
ODD(odd_cmov, "cmpq %rdi, %rsi\ncmovaq %rsi, %rax\nmovl $1, %eax\nret")
ODD(odd_xchg, "xchgq %rdi, %rsi\nleaq (%rdi,%rsi,2), %rax\nret")
ODD(odd_lock, "lock incq odd_counter(%rip)\nmovq odd_counter(%rip), %rax\nret")
ODD(odd_syscall_first, "movl $110, %eax\nsyscall\ntestl %eax, %eax\nsetg %al\nmovzbl %al, %eax\nret")
ODD(odd_ret_imm, "jmp 1f\n1: movl $9, %eax\nret")
ODD(odd_enter, "enter $16, $0\nmovq %rdi, -8(%rbp)\nmovq -8(%rbp), %rax\nleave\nret")
ODD(odd_std, "std\npushfq\npopq %rax\ncld\nandl $0x400, %eax\nret")
ODD(odd_stc, "stc\nsetc %al\nmovzbl %al, %eax\nret")
ODD(odd_pushf, "pushfq\npopq %rax\nandl $0x100, %eax\nret")
ODD(odd_jmp_memory, "jmpq *1f(%rip)\n.balign 8\n.pushsection .data.rel.local,\"aw\"\n1: .quad 2f\n.popsection\n2: movl $12, %eax\nret")
ODD(odd_nop_ret, "nop\nret")
ODD(odd_loop, "movl $5, %ecx\n1: incl %eax\nloop 1b\nmovl %ecx, %eax\nret")
ODD(odd_loop_to_itself, "loopne odd_loop_to_itself\nmovq %rcx, %rax\nret")
ODD(odd_xmm, "movdqu (%rsi), %xmm0\nmovq %xmm0, %rax\nret")
long odd_counter __attribute__((used));
C(odd_push_rsp); C(odd_call_next); C(odd_jmp); C(odd_jrcxz); C(odd_movsb); C(odd_riprel); C(odd_cmov); C(odd_xchg); C(odd_lock);
C(odd_syscall_first); C(odd_ret_imm); C(odd_enter); C(odd_std); C(odd_stc); C(odd_pushf); C(odd_jmp_memory); C(odd_nop_ret); C(odd_xmm);

// With RCX, which a C function does not pass.
static long with_count(void *function, long a, long b, long count) {
    long answer;
    __asm__ volatile("call *%1" : "=a"(answer), "+r"(function), "+D"(a), "+S"(b), "+c"(count)::"memory", "cc", "rdx", "r8", "r9", "r10", "r11");
    return answer;
}

int main(void) {
    static long from = 0x1234, to;
    long sum = 0;
    void odd_loop(void), odd_loop_to_itself(void), odd_jrcxz_(void) __asm__("odd_jrcxz");
    for (int i = 0; i < 10; i++) {
        long some[] = {odd_push_rsp(0, 0), odd_call_next(0, 0), odd_jmp(i, 0), odd_riprel(0, 0), odd_cmov(i, 5), odd_xchg(i, 3), odd_lock(0, 0),
            odd_syscall_first(0, 0), odd_ret_imm(0, 0), odd_enter(i, 0), odd_std(0, 0), odd_stc(0, 0), odd_pushf(0, 0), odd_jmp_memory(0, 0),
            odd_xmm(0, (long)&from), with_count((void *)odd_movsb, (long)&to, (long)&from, 8), with_count((void *)odd_loop, 0, 0, 3),
            with_count((void *)odd_loop_to_itself, 0, 0, 4), with_count((void *)odd_jrcxz_, 0, 0, 0), with_count((void *)odd_jrcxz_, 0, 0, 1)};
        for (unsigned j = 0; j < sizeof some / sizeof *some; j++) sum = sum * 3 + some[j], i == 1 ? printf("%u: %ld\n", j, some[j]) : 0;
    }
    printf("%ld %lx\n", sum, to);
    calls(".", "odd_lock", 10);
    calls(".", "odd_jrcxz", 20);
    return 0;
}
