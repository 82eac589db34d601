// Functions whose instructions the checks know, of four bytes where it does not say otherwise.
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
.option push
.option norvc
// target_plain(a) -> a + 1, its first instruction runs out of line
FUNCTION target_plain
    addi a0, a0, 1
    ret
END target_plain
// target_load(address) -> the word there, loaded by `target_load_insn`
FUNCTION target_load
.globl target_load_insn
target_load_insn:
    ld a0, 0(a0)
    ret
END target_load
// target_jump(a) -> a + 1, its first instruction is emulated
FUNCTION target_jump
    j 1f
    .word 0
1:  addi a0, a0, 1
    ret
END target_jump
// target_call(a) -> a + 2, its third instruction calls target_plain
FUNCTION target_call
    addi sp, sp, -16
    sd ra, 0(sp)
.globl target_call_insn
target_call_insn:
    jal target_plain
    addi a0, a0, 1
    ld ra, 0(sp)
    addi sp, sp, 16
    ret
END target_call
// target_foreign() -> 7, its first instruction is a breakpoint that nobody planted
FUNCTION target_foreign
    .option push
    .option rvc
    c.ebreak
    .option pop
    li a0, 7
    ret
END target_foreign
// From here on two bytes each.
.option rvc
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
.option pop
