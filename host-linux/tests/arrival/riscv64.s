.text
.globl arrival_work
.type arrival_work, @function
arrival_work:
.cfi_startproc
    addi sp, sp, -32
    .cfi_def_cfa_offset 32
    sd ra, 24(sp)
    .cfi_offset ra, -8
    sd a0, 16(sp)
    li t0, 100
    bltu t0, a0, arrival_work.cold
    addi a0, a0, 1
    ld ra, 24(sp)
    addi sp, sp, 32
    .cfi_def_cfa_offset 0
    .cfi_restore ra
    ret
.cfi_endproc
.size arrival_work, . - arrival_work

.type arrival_work.cold, @function
arrival_work.cold:
.cfi_startproc
    .cfi_def_cfa_offset 32
    .cfi_offset ra, -8
    ld a0, 16(sp)
    addi a0, a0, 1000
    ld ra, 24(sp)
    addi sp, sp, 32
    .cfi_def_cfa_offset 0
    .cfi_restore ra
    ret
.cfi_endproc
.size arrival_work.cold, . - arrival_work.cold

.type arrival_bare.cold.7, @function
arrival_bare.cold.7:
    ret
.size arrival_bare.cold.7, . - arrival_bare.cold.7
