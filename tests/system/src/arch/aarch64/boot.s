// -M virt starts a kernel at EL1 with the MMU off and interrupts masked.
.section .text.boot, "ax"
.globl _start
_start:
    msr spsel, #1
    ldr x1, =boot_stack_top
    mov sp, x1
    ldr x2, =__bss_start
    ldr x3, =__bss_end
1:  cmp x2, x3
    b.hs 2f
    stp xzr, xzr, [x2], #16
    b 1b
2:  mov x29, xzr
    bl kernel_main
    brk #0xffff

// PSCI starts another CPU here; x0 = its stack, at whose end its number lies.
.globl secondary_start
secondary_start:
    mov sp, x0
    ldr x0, [sp]
    mov x29, xzr
    bl secondary_main
    brk #0xffff

.section .bss
.balign 16
boot_stack: .skip 65536
boot_stack_top:
