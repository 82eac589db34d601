# What compiled code calls and this target's library does not bring.
.section .text.mem, "ax"
FUNCTION memmove
    cmpld 3, 4
    ble 5f
    add 6, 3, 5
    add 7, 4, 5
    cmpdi 5, 0
    beqlr
    mtctr 5
1:  lbzu 0, -1(7)
    stbu 0, -1(6)
    bdnz 1b
    blr
END memmove

FUNCTION memcpy
5:  mr 6, 3
    srdi. 7, 5, 3
    beq 2f
    mtctr 7
1:  ld 0, 0(4)
    std 0, 0(6)
    addi 4, 4, 8
    addi 6, 6, 8
    bdnz 1b
2:  andi. 7, 5, 7
    beqlr
    mtctr 7
3:  lbz 0, 0(4)
    stb 0, 0(6)
    addi 4, 4, 1
    addi 6, 6, 1
    bdnz 3b
    blr
END memcpy

FUNCTION memset
    cmpdi 5, 0
    beqlr
    mtctr 5
    addi 6, 3, -1
1:  stbu 4, 1(6)
    bdnz 1b
    blr
END memset

FUNCTION bcmp
END bcmp
FUNCTION memcmp
    cmpdi 5, 0
    beq 2f
    mtctr 5
1:  lbz 6, 0(3)
    lbz 7, 0(4)
    cmpd 6, 7
    bne 3f
    addi 3, 3, 1
    addi 4, 4, 1
    bdnz 1b
2:  li 3, 0
    blr
3:  subf 3, 7, 6
    blr
END memcmp

FUNCTION strlen
    mr 4, 3
    li 3, 0
1:  lbzx 5, 4, 3
    cmpdi 5, 0
    beqlr
    addi 3, 3, 1
    b 1b
END strlen

# Precompiled code mentions unwinding, which a kernel that aborts on panic never does.
FUNCTION _Unwind_Resume
    trap
END _Unwind_Resume
FUNCTION rust_eh_personality
    trap
END rust_eh_personality
