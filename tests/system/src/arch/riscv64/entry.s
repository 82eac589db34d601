// Trap entry: the frame is the backend's `PtRegs` (what Linux's struct pt_regs begins with): pc, x1 to x31,
// sstatus.
.set REGS, 272
.set GAP, 512                   // room below the interrupted stack for what a jump probe's handler is given

.section .text.entry, "ax"
.option push
.option norvc
.balign 4
.globl trap_entry
trap_entry:
    addi sp, sp, -(REGS + GAP)
    .irp n, 1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    sd x\n, 8*\n(sp)
    .endr
    addi t0, sp, REGS + GAP
    sd t0, 16(sp)
    csrr t0, sepc
    sd t0, 0(sp)
    csrr t0, sstatus
    sd t0, 256(sp)
    csrr a1, scause
    mv a0, sp
    bltz a1, 1f
    call riscv64_exception
    j 2f
1:  call riscv64_interrupt

// The stack pointer may have been changed: it is loaded last, from this frame.
2:  ld t0, 0(sp)
    csrw sepc, t0
    ld t0, 256(sp)
    csrw sstatus, t0
    .irp n, 1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ld x\n, 8*\n(sp)
    .endr
    ld sp, 16(sp)
    sret

// switch_stacks(from: *mut usize, to: usize)
.globl switch_stacks
switch_stacks:
    addi sp, sp, -112
    sd ra, 0(sp)
    sd s0, 8(sp)
    sd s1, 16(sp)
    sd s2, 24(sp)
    sd s3, 32(sp)
    sd s4, 40(sp)
    sd s5, 48(sp)
    sd s6, 56(sp)
    sd s7, 64(sp)
    sd s8, 72(sp)
    sd s9, 80(sp)
    sd s10, 88(sp)
    sd s11, 96(sp)
    sd sp, 0(a0)
    mv sp, a1
    ld ra, 0(sp)
    ld s0, 8(sp)
    ld s1, 16(sp)
    ld s2, 24(sp)
    ld s3, 32(sp)
    ld s4, 40(sp)
    ld s5, 48(sp)
    ld s6, 56(sp)
    ld s7, 64(sp)
    ld s8, 72(sp)
    ld s9, 80(sp)
    ld s10, 88(sp)
    ld s11, 96(sp)
    addi sp, sp, 112
    ret

// call_on_stack(run: extern fn(), top: usize): calls it on the stack that ends there
.globl call_on_stack
call_on_stack:
    addi sp, sp, -16
    sd ra, 0(sp)
    sd s0, 8(sp)
    mv s0, sp
    mv sp, a1
    jalr a0
    mv sp, s0
    ld ra, 0(sp)
    ld s0, 8(sp)
    addi sp, sp, 16
    ret

.option pop
