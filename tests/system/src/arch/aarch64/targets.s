// Functions whose instructions the checks know.
.macro FUNCTION name
.balign 16
.globl \name
.type \name, %function
\name:
.endm
.macro END name
.size \name, . - \name
.endm

.text
// target_plain(a) -> a + 1, its first instruction runs out of line
FUNCTION target_plain
    add x0, x0, #1
    ret
END target_plain
// target_load(address) -> the word there, loaded by `target_load_insn`
FUNCTION target_load
.globl target_load_insn
target_load_insn:
    ldr x0, [x0]
    ret
END target_load
// target_jump(a) -> a + 1, its first instruction is emulated
FUNCTION target_jump
    b 1f
    udf #0
1:  add x0, x0, #1
    ret
END target_jump
// target_call(a) -> a + 2, its second instruction calls target_plain
FUNCTION target_call
    stp x29, x30, [sp, #-16]!
.globl target_call_insn
target_call_insn:
    bl target_plain
    add x0, x0, #1
    ldp x29, x30, [sp], #16
    ret
END target_call
// target_foreign() -> 7, its first instruction is a breakpoint that nobody planted
FUNCTION target_foreign
    brk #1
    mov x0, #7
    ret
END target_foreign
// A hundred instructions
FUNCTION target_hundred
    .rept 99
    nop
    .endr
    ret
END target_hundred
// Ten thousand places for probes
FUNCTION target_sled
    .rept 10000
    nop
    .endr
    ret
END target_sled
