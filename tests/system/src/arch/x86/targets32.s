# Functions whose instructions the checks know.
.macro FUNCTION name
.balign 16
.globl \name
.type \name, @function
\name:
.endm
.macro END name
.size \name, . - \name
.endm

.text
# target_plain(a) -> a + 1, its first instruction runs out of line
FUNCTION target_plain
    incl 4(%esp)
    movl 4(%esp), %eax
    ret
END target_plain
# target_load(address) -> the word there, loaded by `target_load_insn`
FUNCTION target_load
    movl 4(%esp), %eax
.globl target_load_insn
target_load_insn:
    movl (%eax), %eax
    ret
END target_load
# target_jump(a) -> a + 1, its first instruction is emulated
FUNCTION target_jump
    jmp 1f
    ud2
1:  movl 4(%esp), %eax
    incl %eax
    ret
END target_jump
# target_call(a) -> a + 2, its second instruction calls target_plain
FUNCTION target_call
    pushl 4(%esp)
.globl target_call_insn
target_call_insn:
    call target_plain
    addl $4, %esp
    incl %eax
    ret
END target_call
# target_foreign() -> 7, its first instruction is a breakpoint that nobody planted
FUNCTION target_foreign
    int3
    movl $7, %eax
    ret
END target_foreign
# A hundred instructions
FUNCTION target_hundred
    .rept 99
    nop
    .endr
    ret
END target_hundred
# Ten thousand places for probes
FUNCTION target_sled
    .rept 10000
    nop
    .endr
    ret
END target_sled
