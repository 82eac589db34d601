# The firmware enters the first byte of the image big-endian, in 32-bit mode, with translation off.
.macro LOAD_ADDRESS register, symbol
    lis \register, \symbol@h
    ori \register, \register, \symbol@l
.endm

# The next instruction is executed little-endian: the words are big-endian code that sets MSR[LE] and goes on
# behind itself; `tdi 0,0,0x48` read big-endian is a jump over nothing (as in every little-endian kernel).
.macro FIX_ENDIAN
.if {little}
    tdi 0, 0, 0x48
    b 191f
    .long 0xa600607d            # mfmsr r11
    .long 0x01006b69            # xori r11, r11, 1
    .long 0x00004039            # li r10, 0
    .long 0x6401417d            # mtmsrd r10, 1
    .long 0x05009f42            # bcl 20, 31, $+4
    .long 0xa602487d            # mflr r10
    .long 0x14004a39            # addi r10, r10, 20
    .long 0xa6035a7d            # mtsrr0 r10
    .long 0xa6037b7d            # mtsrr1 r11
    .long 0x2400004c            # rfid
191:
.endif
.endm

# 64-bit mode, floating point and vectors available: compiled code uses them.
.macro SET_MSR scratch, bit
    mfmsr \scratch
    oris \scratch, \scratch, 0x0280     # VEC, VSX
    ori \scratch, \scratch, 0x3002      # FP, ME, RI
    li \bit, 1
    rldicr \bit, \bit, 63, 0            # SF
    or \scratch, \scratch, \bit
    mtmsrd \scratch
    isync
.endm

.section .text.boot, "ax"
.globl _start
_start:
    FIX_ENDIAN
    SET_MSR 3, 4
    LOAD_ADDRESS 2, .TOC.
    LOAD_ADDRESS 1, boot_stack_top - 512
    LOAD_ADDRESS 4, __bss_start
    LOAD_ADDRESS 5, __bss_end
    li 6, 0
1:  cmpld 4, 5
    bge 2f
    std 6, 0(4)
    addi 4, 4, 8
    b 1b
2:  std 6, 0(1)
    bl kernel_main
    nop
    trap

# RTAS starts another CPU here; r3 = the end of its stack, where its number lies.
.globl secondary_start
secondary_start:
    FIX_ENDIAN
    mr 7, 3
    SET_MSR 3, 4
    LOAD_ADDRESS 2, .TOC.
    ld 3, 0(7)
    addi 1, 7, -512
    li 6, 0
    std 6, 0(1)
    bl secondary_main
    nop
    trap

.section .bss
.balign 16
boot_stack: .skip 65536
boot_stack_top:
