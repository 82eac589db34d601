// OpenSBI enters in S mode, paging off, interrupts disabled, on any hart: a0 = its number.
.section .head, "ax"
.globl _start
_start:
    tail start

.section .text.boot, "ax"
start:
    la sp, boot_stack_top
    la t0, __bss_start
    la t1, __bss_end
1:  bgeu t0, t1, 2f
    sd zero, 0(t0)
    addi t0, t0, 8
    j 1b
2:  la t0, BOOT_HART
    sd a0, 0(t0)
    li s0, 0
    call kernel_main
    unimp

// OpenSBI starts another hart here: a0 = its number, a1 = its stack, at whose end this kernel's number for it
// lies.
.globl secondary_start
.type secondary_start, %function
secondary_start:
    mv sp, a1
    ld a0, 0(sp)
    li s0, 0
    call secondary_main
    unimp
.size secondary_start, . - secondary_start

.section .bss
.balign 16
boot_stack: .skip 65536
boot_stack_top:
