# A module: position-independent functions.
.section .rodata.module, "a"
.balign 16
.globl module_start, module_add, module_twice, module_end
module_start:
module_add:
    mr 5, 3
    add 3, 5, 4
    blr
    nop
module_twice:
    mr 5, 3
    add 3, 5, 5
    blr
    nop
module_end:
.text
