# A module: position-independent functions.
.section .rodata.module, "a"
.balign 16
.globl module_start, module_add, module_twice, module_end
module_start:
module_add:
    movl 4(%esp), %eax
    addl 8(%esp), %eax
    ret
.balign 16, 0x90
module_twice:
    movl 4(%esp), %eax
    addl %eax, %eax
    ret
.balign 16, 0x90
module_end:
.text
