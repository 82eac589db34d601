// Functions whose instructions the checks know, around the instructions that each machine's file has as
// macros, and a module: position-independent functions.
.text
.globl target_load_insn, target_call_insn
// target_plain(a) -> a + 1, its first instruction runs out of line
FUNCTION target_plain
    TARGET_PLAIN
END target_plain
// target_load(address) -> the word there, loaded by `target_load_insn`
FUNCTION target_load
    TARGET_LOAD
END target_load
// target_jump(a) -> a + 1, its first instruction is emulated
FUNCTION target_jump
    TARGET_JUMP
END target_jump
// target_enable(a) -> a, with interrupts enabled
FUNCTION target_enable
    TARGET_ENABLE
END target_enable
// target_call(a) -> a + 2, `target_call_insn` calls target_plain
FUNCTION target_call
    TARGET_CALL
END target_call
// target_foreign() -> 7, its first instruction is a breakpoint that nobody planted
FUNCTION target_foreign
    TARGET_FOREIGN
END target_foreign
// A hundred instructions
FUNCTION target_hundred
    TARGET_NOPS 99
END target_hundred
// Ten thousand places for probes
FUNCTION target_sled
    TARGET_NOPS 10000
END target_sled

.section .rodata.module, "a"
.balign 16
.globl module_start, module_add, module_twice, module_end
module_start:
// module_add(a, b) -> a + b
module_add:
    MODULE_ADD
.balign 16
// module_twice(a) -> a + a
module_twice:
    MODULE_TWICE
.balign 16
module_end:
.text
