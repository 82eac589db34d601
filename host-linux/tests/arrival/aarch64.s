.text
.globl arrival_work
.type arrival_work, @function
arrival_work:
.cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    str x0, [sp, #16]
    cmp x0, #100
    b.hi arrival_work.cold
    add x0, x0, #1
    ldp x29, x30, [sp], #32
    .cfi_def_cfa_offset 0
    .cfi_restore x29
    .cfi_restore x30
    ret
.cfi_endproc
.size arrival_work, . - arrival_work

// The link register is used as any other, as gcc's parts do when the address is saved.
.type arrival_work.cold, @function
arrival_work.cold:
.cfi_startproc
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    ldr x0, [sp, #16]
    add x0, x0, #1000
    ldp x29, x30, [sp], #32
    .cfi_def_cfa_offset 0
    .cfi_restore x29
    .cfi_restore x30
    ret
.cfi_endproc
.size arrival_work.cold, . - arrival_work.cold

.type arrival_bare.cold.7, @function
arrival_bare.cold.7:
    ret
.size arrival_bare.cold.7, . - arrival_bare.cold.7
