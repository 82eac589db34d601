.text
.balign 16
.globl arrival_work
.type arrival_work, @function
.if {elfv1}
.pushsection .opd, "aw"
.balign 8
arrival_work:
    .quad .Larrival_work, .TOC.@tocbase, 0
.popsection
.Larrival_work:
.else
arrival_work:
.Larrival_work:
.endif
.cfi_startproc
    mflr 0
    std 0, 16(1)
    stdu 1, -48(1)
    .cfi_def_cfa_offset 48
    .cfi_offset 65, 16
    std 3, 32(1)
    cmpldi 3, 100
    bgt arrival_work.cold
    addi 3, 3, 1
    addi 1, 1, 48
    .cfi_def_cfa_offset 0
    ld 0, 16(1)
    mtlr 0
    .cfi_restore 65
    blr
.cfi_endproc
.size arrival_work, . - .Larrival_work

.type arrival_work.cold, @function
arrival_work.cold:
.cfi_startproc
    .cfi_def_cfa_offset 48
    .cfi_offset 65, 16
    ld 3, 32(1)
    addi 3, 3, 1000
    addi 1, 1, 48
    .cfi_def_cfa_offset 0
    ld 0, 16(1)
    mtlr 0
    .cfi_restore 65
    blr
.cfi_endproc
.size arrival_work.cold, . - arrival_work.cold

.type arrival_bare.cold.7, @function
arrival_bare.cold.7:
    blr
.size arrival_bare.cold.7, . - arrival_bare.cold.7
