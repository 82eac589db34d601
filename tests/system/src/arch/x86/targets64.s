# The instructions of the functions in ../targets.s.
.macro TARGET_PLAIN
    incq %rdi
    movq %rdi, %rax
    ret
.endm
.macro TARGET_LOAD
target_load_insn:
    movq (%rdi), %rax
    ret
.endm
.macro TARGET_JUMP
    jmp 1f
    ud2
1:  leaq 1(%rdi), %rax
    ret
.endm
.macro TARGET_ENABLE
    movq %rdi, %rax
    sti
    ret
.endm
.macro TARGET_CALL
    nop
target_call_insn:
    call target_plain
    incq %rax
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
    movq %rdi, %rax
    addq %rsi, %rax
    ret
    .balign 16, 0x90
.endm
.macro MODULE_TWICE
    movq %rdi, %rax
    addq %rax, %rax
    ret
    .balign 16, 0x90
.endm
