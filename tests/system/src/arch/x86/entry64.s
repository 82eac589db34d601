# Trap entry: the frame is the backend's `Regs` (Linux: struct pt_regs). Room below the interrupted stack for
# what an emulated instruction pushes; it also aligns the stack below the frame.
.set GAP, 264

.section .text.entry, "ax", @progbits
.macro SAVE_REST                        # rdi is saved
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %rax
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
.endm

# Every other vector: stub N pushes an error code where the CPU does not.
.balign 16
.globl trap_stubs
trap_stubs:
.set vector, 0
.rept 256
    .balign 16
    .if (vector != 8) && ((vector < 10) || (vector > 14)) && (vector != 17) && (vector != 21)
    pushq $0
    .endif
    pushq %rdi
    movl $vector, %edi
    jmp trap_entry
    .set vector, vector + 1
.endr

trap_entry:
    SAVE_REST
    movl %edi, %esi
    movq %rsp, %rdi
    subq $8, %rsp
    call x86_trap
    addq $8, %rsp
    jmp restore

# Vector 3 on a stack of its own: there the frame needs no gap.
.balign 16
.globl breakpoint_entry_on_own_stack
breakpoint_entry_on_own_stack:
    pushq $0
    pushq %rdi
    SAVE_REST
    movq %rsp, %rdi
    subq $8, %rsp
    call x86_breakpoint_on_own_stack
    addq $8, %rsp
    jmp restore

# Vector 3 has an entry of its own: a gap between the interrupted stack and the frame, and no detour.
.balign 16
.globl breakpoint_entry
breakpoint_entry:
    pushq $0                            # orig_ax
    subq $(GAP - 48), %rsp
    .rept 6                             # orig_ax, ip, cs, flags, sp, ss once more, below the gap
    pushq (GAP - 8)(%rsp)
    .endr
    pushq %rdi
    SAVE_REST
    movq %rsp, %rdi
    call x86_breakpoint
restore:
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rax
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    addq $8, %rsp
    iretq

# switch_stacks(from: *mut usize, to: usize)
.globl switch_stacks
switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret

# call_on_stack(run: extern fn(), top: usize): calls it on the stack that ends there
.globl call_on_stack
call_on_stack:
    pushq %rbp
    movq %rsp, %rbp
    movq %rsi, %rsp
    call *%rdi
    movq %rbp, %rsp
    popq %rbp
    ret
