# Trap entry: the frame is the backend's `Regs` (Linux: struct pt_regs). An i386 CPU that stays in the kernel
# pushes neither stack pointer nor stack segment, so the frame is built anew below a gap, and the return goes
# through the stack that the frame names.
.set GAP, 256                           # room below the interrupted stack for what an emulated instruction pushes

.set REGS_CX, 4
.set REGS_DS, 28
.set REGS_GS, 40
.set REGS_IP, 48
.set REGS_CS, 52
.set REGS_FLAGS, 56
.set REGS_SP, 60

.section .text.entry, "ax", @progbits
# Stub N pushes an error code where the CPU does not, and N.
.balign 16
.globl trap_stubs
trap_stubs:
.set vector, 0
.rept 256
    .balign 16
    .if (vector != 8) && ((vector < 10) || (vector > 14)) && (vector != 17) && (vector != 21)
    pushl $0
    .endif
    pushl $vector
    jmp trap_entry
    .set vector, vector + 1
.endr

.macro SAVE_GENERAL
    pushl %eax
    pushl %ebp
    pushl %edi
    pushl %esi
    pushl %edx
    pushl %ecx
    pushl %ebx
    cld
.endm

.macro BUILD_FRAME                      # from: vector, error code, ip, cs, flags | interrupted stack
    leal -GAP(%esp), %esp
    pushl %ss
    pushl %esp
    addl $(GAP + 24), (%esp)            # what it was before the trap
    .rept 5                             # flags, cs, ip, error code (orig_ax), vector (in the place of gs)
    pushl (GAP + 24)(%esp)
    .endr
    subl $12, %esp                      # fs, es, ds: always the same
    SAVE_GENERAL
.endm

.balign 16
trap_entry:
    BUILD_FRAME
    movl %esp, %eax
    pushl REGS_GS(%eax)
    pushl %eax
    call x86_trap
    addl $8, %esp
    jmp restore

# Vector 3 has an entry of its own, without a detour: the same frame.
.balign 16
.globl breakpoint_entry
breakpoint_entry:
    leal -GAP(%esp), %esp
    pushl %ss
    pushl %esp
    addl $(GAP + 16), (%esp)            # what it was before the trap
    .rept 3                             # flags, cs, ip
    pushl (GAP + 16)(%esp)
    .endr
    pushl $0                            # orig_ax
    subl $16, %esp                      # gs, fs, es, ds: always the same
    SAVE_GENERAL
    pushl %esp
    call x86_breakpoint
    addl $4, %esp

# The return goes through the stack that the frame names: cx, ip, cs and flags are put there.
restore:
    movl REGS_SP(%esp), %ebx
    movl REGS_FLAGS(%esp), %eax
    movl REGS_CS(%esp), %ecx
    movl REGS_IP(%esp), %edx
    movl %eax, -4(%ebx)
    movl %ecx, -8(%ebx)
    movl %edx, -12(%ebx)
    movl REGS_CX(%esp), %ecx
    movl %ecx, -16(%ebx)
    subl $16, %ebx
    movl %ebx, %ecx
    popl %ebx
    addl $4, %esp
    popl %edx
    popl %esi
    popl %edi
    popl %ebp
    popl %eax
    movl %ecx, %esp
    popl %ecx
    iretl

# switch_stacks(from: *mut usize, to: usize)
.globl switch_stacks
switch_stacks:
    movl 4(%esp), %eax
    movl 8(%esp), %edx
    pushl %ebp
    pushl %ebx
    pushl %esi
    pushl %edi
    movl %esp, (%eax)
    movl %edx, %esp
    popl %edi
    popl %esi
    popl %ebx
    popl %ebp
    ret

# call_on_stack(run: extern fn(), top: usize): calls it on the stack that ends there
.globl call_on_stack
call_on_stack:
    pushl %ebp
    movl %esp, %ebp
    movl 8(%ebp), %eax
    movl 12(%ebp), %esp
    call *%eax
    movl %ebp, %esp
    popl %ebp
    ret
