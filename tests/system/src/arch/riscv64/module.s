// A module: position-independent functions.
.section .rodata.module, "a"
.option push
.option norvc
.balign 16
.globl module_start, module_add, module_twice, module_end
module_start:
module_add:
    mv t0, a0
    add a0, t0, a1
    ret
    nop
module_twice:
    mv t0, a0
    add a0, t0, t0
    ret
    nop
module_end:
.option pop
.text
