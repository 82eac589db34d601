// The instructions of the functions in ../targets.s, in A32.
.macro TARGET_PLAIN
    add r0, r0, #1
    bx lr
.endm
.macro TARGET_LOAD
target_load_insn:
    ldr r0, [r0]
    bx lr
.endm
.macro TARGET_JUMP
    b 1f
    udf #0
1:  add r0, r0, #1
    bx lr
.endm
.macro TARGET_ENABLE
    mov r0, r0                  // a place for a probe
    cpsie i
    bx lr
.endm
.macro TARGET_CALL
    push {{r3, lr}}
target_call_insn:
    bl target_plain
    add r0, r0, #1
    pop {{r3, pc}}
.endm
.macro TARGET_FOREIGN
    bkpt #1
    mov r0, #7
    bx lr
.endm
.macro TARGET_NOPS count
    .rept \count
    nop
    .endr
    bx lr
.endm
.macro MODULE_ADD
    mov ip, r0
    add r0, ip, r1
    bx lr
    nop
.endm
.macro MODULE_TWICE
    mov ip, r0
    add r0, ip, ip
    bx lr
    nop
.endm
