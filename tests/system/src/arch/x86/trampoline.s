# Where another CPU starts, in real mode: copied to 0x8000. `trampoline_data` holds the root table, the stack
# and the number.
.section .rodata, "a"
.code16
.balign 16
.globl trampoline_start, trampoline_data, trampoline_end
trampoline_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl (trampoline_gdt_pointer - trampoline_start + 0x8000)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $8, $(1f - trampoline_start + 0x8000)
.code32
1:  movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl (trampoline_data - trampoline_start + 0x8000), %eax
    movl (trampoline_data - trampoline_start + 0x8004), %esp
    movl (trampoline_data - trampoline_start + 0x8008), %ebx
    movl $secondary_start32, %ecx
    jmp *%ecx
.balign 8
trampoline_gdt:
    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
trampoline_gdt_pointer:
    .word 23
    .long trampoline_gdt - trampoline_start + 0x8000
.balign 4
trampoline_data:
    .skip 12
trampoline_end:
.text
