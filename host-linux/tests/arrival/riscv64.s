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

// As `-msave-restore` has it: called by t0.
.type arrival_millicode, @function
arrival_millicode:
.cfi_startproc
.cfi_return_column t0
    addi sp, sp, -16
    .cfi_def_cfa_offset 16
    sd ra, 8(sp)
    .cfi_offset ra, -8
    jr t0
.cfi_endproc
.size arrival_millicode, . - arrival_millicode

.globl arrival_saving
.type arrival_saving, @function
arrival_saving:
.cfi_startproc
    jal t0, arrival_millicode
    .cfi_def_cfa_offset 16
    .cfi_offset ra, -8
    addi a0, a0, 1
    ld ra, 8(sp)
    addi sp, sp, 16
    .cfi_def_cfa_offset 0
    .cfi_restore ra
    ret
.cfi_endproc
.size arrival_saving, . - arrival_saving

.type arrival_bare.cold.7, @function
arrival_bare.cold.7:
    ret
.size arrival_bare.cold.7, . - arrival_bare.cold.7
