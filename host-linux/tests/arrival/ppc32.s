.text
.balign 16
.globl arrival_work
.type arrival_work, @function
arrival_work:
.cfi_startproc
    mflr 0
    stw 0, 4(1)
    stwu 1, -48(1)
    .cfi_def_cfa_offset 48
    .cfi_offset 65, 4
    stw 3, 32(1)
    cmplwi 3, 100
    bgt arrival_work.cold
    addi 3, 3, 1
    addi 1, 1, 48
    .cfi_def_cfa_offset 0
    lwz 0, 4(1)
    mtlr 0
    .cfi_restore 65
    blr
.cfi_endproc
.size arrival_work, . - arrival_work

.type arrival_work.cold, @function
arrival_work.cold:
.cfi_startproc
    .cfi_def_cfa_offset 48
    .cfi_offset 65, 4
    lwz 3, 32(1)
    addi 3, 3, 1000
    addi 1, 1, 48
    .cfi_def_cfa_offset 0
    lwz 0, 4(1)
    mtlr 0
    .cfi_restore 65
    blr
.cfi_endproc
.size arrival_work.cold, . - arrival_work.cold

.type arrival_bare.cold.7, @function
arrival_bare.cold.7:
    blr
.size arrival_bare.cold.7, . - arrival_bare.cold.7
