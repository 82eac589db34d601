// -M virt starts a kernel in Supervisor mode with the MMU off and interrupts masked.
.section .text.boot, "ax"
.syntax unified
.arm
.globl _start
_start:
    cps #0x13
    ldr sp, =boot_stack_top
    ldr r2, =__bss_start
    ldr r3, =__bss_end
    mov r0, #0
1:  cmp r2, r3
    bhs 2f
    str r0, [r2], #4
    b 1b
2:  mov fp, #0
    bl kernel_main
    udf #0

// PSCI starts another CPU here; r0 = its stack, at whose end its number lies.
.globl secondary_start
.type secondary_start, %function
secondary_start:
    cps #0x13
    mov sp, r0
    ldr r0, [sp]
    mov fp, #0
    bl secondary_main
    udf #0
.size secondary_start, . - secondary_start
.ltorg

.section .bss
.balign 16
boot_stack: .skip 65536
boot_stack_top:
