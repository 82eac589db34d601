// Trap entry: the frame is the backend's `Regs` (Linux: struct pt_regs), x0-x30, sp, pc, pstate.
.set REGS, 272
.set GAP, 512                   // room below the interrupted stack for what a jump probe's handler is given

.section .text.entry, "ax"
.macro SAVE
    sub sp, sp, #(REGS + GAP)
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    add x1, sp, #(REGS + GAP)
    stp x30, x1, [sp, #240]
    mrs x1, elr_el1
    mrs x2, spsr_el1
    stp x1, x2, [sp, #256]
    mov x0, sp
.endm

synchronous:
    SAVE
    mrs x1, esr_el1
    bl aarch64_synchronous
    b restore

interrupt:
    SAVE
    bl aarch64_interrupt

// The stack pointer may have been changed: x0 and x1 go through the new stack.
restore:
    ldp x0, x1, [sp]
    ldr x2, [sp, #248]
    stp x0, x1, [x2, #-16]!
    str x2, [sp, #248]
    ldp x0, x1, [sp, #256]
    msr elr_el1, x0
    msr spsr_el1, x1
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    ldp x30, x0, [sp, #240]
    mov sp, x0
    ldp x0, x1, [sp], #16
    eret

unexpected:
    SAVE
    mrs x1, esr_el1
    bl aarch64_unexpected

.macro VECTOR target
    .balign 128
    b \target
.endm
.balign 2048
.globl vectors
vectors:
    .rept 4                     // from EL1 with SP_EL0
    VECTOR unexpected
    .endr
    VECTOR synchronous          // from EL1 with SP_EL1
    VECTOR interrupt
    VECTOR unexpected
    VECTOR unexpected
    .rept 8                     // from EL0
    VECTOR unexpected
    .endr

// switch_stacks(from: *mut usize, to: usize)
.globl switch_stacks
switch_stacks:
    stp x29, x30, [sp, #-96]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp x29, x30, [sp], #96
    ret

// call_on_stack(run: extern fn(), top: usize): calls it on the stack that ends there
.globl call_on_stack
call_on_stack:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    mov sp, x1
    blr x0
    mov sp, x29
    ldp x29, x30, [sp], #16
    ret
