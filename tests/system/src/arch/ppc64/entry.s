# Trap entry: the frame is the backend's `PtRegs` (Linux: struct pt_regs), 2048 bytes below the interrupted
# stack pointer: past what compiled code uses below it (512 bytes), and room for what a jump probe's handler
# is given.
.set FRAME, 2048
.set REGS, 112                  # above the register save area of the C functions called from here

.section .rodata
.balign 4
# Copied to every vector; the vector's number is put into `vector_number`, the address of `trap_entry` into
# `vector_branch`. Runs with translation off.
.globl vector_start, vector_number, vector_branch, vector_end
vector_start:
    mtsprg 0, 3
vector_number:
    li 3, 0
vector_branch:
    ba 0
vector_end:
# The whole of vector 0x700, with the address of `program_entry`.
.globl program_vector
program_vector:
    ba 0

.section .text.entry, "ax"
.macro SAVE_SPECIAL                 # r4 and r5 are saved, and free; leaves SRR1 in r5
    addi 4, 1, FRAME
    std 4, REGS+8*1(1)
    std 4, 0(1)
    mfsrr0 4
    std 4, REGS+8*32(1)
    mfsrr1 5
    std 5, REGS+8*33(1)
    mfctr 4
    std 4, REGS+8*35(1)
    mflr 4
    std 4, REGS+8*36(1)
    mfxer 4
    std 4, REGS+8*37(1)
    mfcr 4
    std 4, REGS+8*38(1)
    LOAD_ADDRESS 2, .TOC.
    mfsprg 4, 2                 # the kernel's own MSR, with translation
    mtmsrd 4                    # it synchronises
.endm

.globl trap_entry
trap_entry:
    addi 1, 1, -FRAME
    std 0, REGS(1)
    .irp r, 2,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    std \r, REGS+8*\r(1)
    .endr
    mfsprg 4, 0
    std 4, REGS+8*3(1)
    SAVE_SPECIAL
    mr 4, 3
other_trap:
    std 4, REGS+8*40(1)         # trap
    addi 3, 1, REGS
    bl ppc64_trap
    b restore

# Vector 0x700 has an entry of its own, without a detour: most of its interrupts are breakpoints.
.globl program_entry
program_entry:
    addi 1, 1, -FRAME
    std 0, REGS(1)
    .irp r, 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    std \r, REGS+8*\r(1)
    .endr
    SAVE_SPECIAL
    li 4, 0x700
    andis. 5, 5, 2              # in SRR1: it was a trap instruction
    beq other_trap
    std 4, REGS+8*40(1)         # trap
    addi 3, 1, REGS
    bl ppc64_breakpoint
restore:
    stdcx. 4, 0, 1              # whoever was interrupted loses its reservation, as another context may hold one now
    ld 4, REGS+8*35(1)
    mtctr 4
    ld 4, REGS+8*36(1)
    mtlr 4
    ld 4, REGS+8*37(1)
    mtxer 4
    ld 4, REGS+8*38(1)
    mtcrf 0xff, 4
    ld 0, REGS(1)
    # Not r13, the CPU's area: the task may be on another CPU by now.
    .irp r, 2,3,6,7,8,9,10,11,12,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ld \r, REGS+8*\r(1)
    .endr
    li 4, 0                     # not recoverable while SRR0 and SRR1 are loaded
    mtmsrd 4, 1
    ld 4, REGS+8*32(1)
    mtsrr0 4
    ld 5, REGS+8*33(1)
    mtsrr1 5
    ld 4, REGS+8*4(1)
    ld 5, REGS+8*5(1)
    ld 1, REGS+8*1(1)
    rfid

# switch_stacks(from: *mut usize, to: usize)
FUNCTION switch_stacks
    mflr 0
    std 0, 16(1)
    mfcr 0
    std 0, 8(1)
    stdu 1, -288(1)
    .irp r, 14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    std \r, 8*\r(1)
    .endr
    std 1, 0(3)
    mr 1, 4
    .irp r, 14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ld \r, 8*\r(1)
    .endr
    addi 1, 1, 288
    ld 0, 8(1)
    mtcrf 0xff, 0
    ld 0, 16(1)
    mtlr 0
    blr
END switch_stacks

# call_on_stack(run: extern fn(), top: usize): calls it on the stack that ends there
FUNCTION call_on_stack
    mflr 0
    std 0, 16(1)
    stdu 1, -64(1)
    std 31, 56(1)
    mr 31, 1
    mr 12, 3
.if {elfv1}
    ld 12, 0(12)
.endif
    mtctr 12
    stdu 1, -128(4)
    mr 1, 4
    bctrl
    mr 1, 31
    ld 31, 56(1)
    addi 1, 1, 64
    ld 0, 16(1)
    mtlr 0
    blr
END call_on_stack

# Where a new stack begins.
.globl task_start
task_start:
    bl ppc64_first_run
    nop
    trap

# hypervisor_call(block: *mut [u64; 5]): number and arguments in, status and results out
FUNCTION hypervisor_call
    mflr 0
    std 0, 16(1)
    stdu 1, -64(1)
    std 3, 48(1)
    mr 12, 3
    ld 3, 0(12)
    ld 4, 8(12)
    ld 5, 16(12)
    ld 6, 24(12)
    ld 7, 32(12)
    .long 0x44000022            # sc 1
    ld 12, 48(1)
    std 3, 0(12)
    std 4, 8(12)
    std 5, 16(12)
    addi 1, 1, 64
    ld 0, 16(1)
    mtlr 0
    blr
END hypervisor_call
