// A module: position-independent functions.
.section .rodata.module, "a"
.balign 16
.globl module_start, module_add, module_twice, module_end
module_start:
module_add:
    mov x9, x0
    add x0, x9, x1
    ret
    nop
module_twice:
    mov x9, x0
    add x0, x9, x9
    ret
    nop
module_end:
.text
