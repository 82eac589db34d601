# The instructions of the functions in ../targets.s.
.macro TARGET_PLAIN
    addi 3, 3, 1
    blr
.endm
.macro TARGET_LOAD
target_load_insn:
    ld 3, 0(3)
    blr
.endm
.macro TARGET_JUMP
    b 1f
    .long 0
1:  addi 3, 3, 1
    blr
.endm
.macro TARGET_ENABLE
    mfmsr 4
    ori 4, 4, 0x8000
    mtmsrd 4, 1
    blr
.endm
.macro TARGET_CALL
    mflr 0
    std 0, 16(1)
    stdu 1, -112(1)
target_call_insn:
    bl target_plain
    addi 3, 3, 1
    addi 1, 1, 112
    ld 0, 16(1)
    mtlr 0
    blr
.endm
.macro TARGET_FOREIGN
    trap
    li 3, 7
    blr
.endm
.macro TARGET_NOPS count
    .rept \count
    nop
    .endr
    blr
.endm
.macro MODULE_ADD
    mr 5, 3
    add 3, 5, 4
    blr
    nop
.endm
.macro MODULE_TWICE
    mr 5, 3
    add 3, 5, 5
    blr
    nop
.endm
