// Trap entry: the frame is the backend's `PtRegs` (Linux: struct pt_regs), r0-r14, pc, cpsr, ORIG_r0. Every
// trap is handled in Supervisor mode, on the interrupted stack; the modes that the processor enters by have
// none.
.set REGS, 72
.set GAP, 512                   // room below the interrupted stack for what a jump probe's handler is given
.set SUPERVISOR, 0x13
.set ABORT, 0x17

.section .text.entry, "ax"
.syntax unified
.arm
// \back: by how much LR is ahead of where to go on (B1.8.3, table B1-7).
.macro SAVE back
    sub lr, lr, #\back
    srsdb sp!, #SUPERVISOR
    cps #SUPERVISOR
    sub sp, sp, #(REGS + GAP - 8)
    stmia sp, {{r0-r12}}
    add r4, sp, #(REGS + GAP)   // sp
    mov r5, lr
    ldrd r6, r7, [r4, #-8]      // pc, cpsr
    mvn r8, #0                  // no system call
    add r0, sp, #52
    stmia r0, {{r4-r8}}
    mov r4, sp
    mov r0, sp
    bic sp, sp, #7
.endm

// The stack pointer may have been changed, so all is loaded through another mode's registers. A reservation
// does not outlive a trap (A3.4.4).
.macro RESTORE
    clrex
    ldr sp, [r4, #52]
    ldr lr, [r4, #56]
    cps #ABORT
    mov lr, r4
    ldmia lr, {{r0-r12}}
    add lr, lr, #60
    rfeia lr
.endm

prefetch_abort:
    SAVE 4
    bl arm_prefetch_abort
    RESTORE

data_abort:
    SAVE 8
    bl arm_data_abort
    RESTORE

// Of a T32 instruction, LR is two bytes less ahead.
undefined:
    SAVE 4
    bl arm_undefined
    RESTORE

supervisor_call:
    SAVE 0
    RESTORE

interrupt:
    SAVE 4
    bl arm_interrupt
    RESTORE

.balign 32
.globl vectors
vectors:
    b .                         // reset
    b undefined
    b supervisor_call
    b prefetch_abort
    b data_abort
    b .                         // Hyp trap
    b interrupt
    b .                         // fast interrupt

// switch_stacks(from: *mut usize, to: usize)
.globl switch_stacks
.type switch_stacks, %function
switch_stacks:
    push {{r3-r11, lr}}
    str sp, [r0]
    mov sp, r1
    pop {{r3-r11, pc}}
.size switch_stacks, . - switch_stacks

// call_on_stack(run: extern fn(), top: usize): calls it on the stack that ends there
.globl call_on_stack
.type call_on_stack, %function
call_on_stack:
    push {{r4, lr}}
    mov r4, sp
    mov sp, r1
    blx r0
    mov sp, r4
    pop {{r4, pc}}
.size call_on_stack, . - call_on_stack

// call_host(call: usize, block: *const [usize; 2]): QEMU's semihosting
.globl call_host
.type call_host, %function
call_host:
    push {{r4, lr}}
    svc #0x123456
    pop {{r4, pc}}
.size call_host, . - call_host
