# The instructions of the functions in ../targets.s.
.macro TARGET_PLAIN
    incl 4(%esp)
    movl 4(%esp), %eax
    ret
.endm
.macro TARGET_LOAD
    movl 4(%esp), %eax
target_load_insn:
    movl (%eax), %eax
    ret
.endm
.macro TARGET_JUMP
    jmp 1f
    ud2
1:  movl 4(%esp), %eax
    incl %eax
    ret
.endm
.macro TARGET_ENABLE
    movl 4(%esp), %eax
    sti
    ret
.endm
.macro TARGET_CALL
    pushl 4(%esp)
target_call_insn:
    call target_plain
    addl $4, %esp
    incl %eax
    ret
.endm
.macro TARGET_FOREIGN
    int3
    movl $7, %eax
    ret
.endm
.macro TARGET_NOPS count
    .rept \count
    nop
    .endr
    ret
.endm
.macro MODULE_ADD
    movl 4(%esp), %eax
    addl 8(%esp), %eax
    ret
    .balign 16, 0x90
.endm
.macro MODULE_TWICE
    movl 4(%esp), %eax
    addl %eax, %eax
    ret
    .balign 16, 0x90
.endm
