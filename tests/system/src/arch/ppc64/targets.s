# Functions whose instructions the checks know.
.text
# target_plain(a) -> a + 1, its first instruction runs out of line
FUNCTION target_plain
    addi 3, 3, 1
    blr
END target_plain
# target_load(address) -> the word there, loaded by `target_load_insn`
FUNCTION target_load
.globl target_load_insn
target_load_insn:
    ld 3, 0(3)
    blr
END target_load
# target_jump(a) -> a + 1, its first instruction is emulated
FUNCTION target_jump
    b 1f
    .long 0
1:  addi 3, 3, 1
    blr
END target_jump
# target_call(a) -> a + 2, `target_call_insn` calls target_plain
FUNCTION target_call
    mflr 0
    std 0, 16(1)
    stdu 1, -112(1)
.globl target_call_insn
target_call_insn:
    bl target_plain
    addi 3, 3, 1
    addi 1, 1, 112
    ld 0, 16(1)
    mtlr 0
    blr
END target_call
# target_foreign() -> 7, its first instruction is a breakpoint that nobody planted
FUNCTION target_foreign
    trap
    li 3, 7
    blr
END target_foreign
# A hundred instructions
FUNCTION target_hundred
    .rept 99
    nop
    .endr
    blr
END target_hundred
# Ten thousand places for probes
FUNCTION target_sled
    .rept 10000
    nop
    .endr
    blr
END target_sled
.purgem FUNCTION
.purgem END
