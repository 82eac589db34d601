# A module: position-independent functions.
.section .rodata.module, "a"
.balign 16
.globl module_start, module_add, module_twice, module_end
module_start:
module_add:
    movq %rdi, %rax
    addq %rsi, %rax
    ret
.balign 16, 0x90
module_twice:
    movq %rdi, %rax
    addq %rax, %rax
    ret
.balign 16, 0x90
module_end:
.text
