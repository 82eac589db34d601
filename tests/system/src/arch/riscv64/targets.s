// The instructions of the functions in ../targets.s.
.macro TARGET_PLAIN
    addi a0, a0, 1
    ret
.endm
.macro TARGET_LOAD
target_load_insn:
    ld a0, 0(a0)
    ret
.endm
.macro TARGET_JUMP
    j 1f
    .word 0
1:  addi a0, a0, 1
    ret
.endm
.macro TARGET_ENABLE
    mv a0, a0                   // a place for a probe
    csrsi sstatus, 2
    ret
.endm
.macro TARGET_CALL
    addi sp, sp, -16
    sd ra, 0(sp)
target_call_insn:
    jal target_plain
    addi a0, a0, 1
    ld ra, 0(sp)
    addi sp, sp, 16
    ret
.endm
.macro TARGET_FOREIGN
    .option push
    .option rvc
    c.ebreak
    .option pop
    li a0, 7
    ret
.endm
.macro TARGET_NOPS count
    // Two bytes each.
    .option push
    .option rvc
    .rept \count
    nop
    .endr
    ret
    .option pop
.endm
.macro MODULE_ADD
    mv t0, a0
    add a0, t0, a1
    ret
    nop
.endm
.macro MODULE_TWICE
    mv t0, a0
    add a0, t0, t0
    ret
    nop
.endm
