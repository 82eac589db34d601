// The instructions of the functions in ../targets.s.
.macro TARGET_PLAIN
    add x0, x0, #1
    ret
.endm
.macro TARGET_LOAD
target_load_insn:
    ldr x0, [x0]
    ret
.endm
.macro TARGET_JUMP
    b 1f
    udf #0
1:  add x0, x0, #1
    ret
.endm
.macro TARGET_ENABLE
    mov x0, x0                  // a place for a probe
    msr daifclr, #2
    ret
.endm
.macro TARGET_CALL
    stp x29, x30, [sp, #-16]!
target_call_insn:
    bl target_plain
    add x0, x0, #1
    ldp x29, x30, [sp], #16
    ret
.endm
.macro TARGET_FOREIGN
    brk #1
    mov x0, #7
    ret
.endm
.macro TARGET_NOPS count
    .rept \count
    nop
    .endr
    ret
.endm
.macro MODULE_ADD
    mov x9, x0
    add x0, x9, x1
    ret
    nop
.endm
.macro MODULE_TWICE
    mov x9, x0
    add x0, x9, x9
    ret
    nop
.endm
