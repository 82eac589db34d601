.text
.globl arrival_work
.type arrival_work, @function
arrival_work:
.cfi_startproc
    sub $40, %rsp
    .cfi_adjust_cfa_offset 40
    mov %rdi, %rax
    mov %rax, (%rsp)
    cmp $100, %rax
    ja arrival_work.cold
    add $1, %rax
    add $40, %rsp
    .cfi_adjust_cfa_offset -40
    ret
.cfi_endproc
.size arrival_work, . - arrival_work

.type arrival_work.cold, @function
arrival_work.cold:
.cfi_startproc
    .cfi_adjust_cfa_offset 40
    mov (%rsp), %rax
    add $1000, %rax
    add $40, %rsp
    .cfi_adjust_cfa_offset -40
    ret
.cfi_endproc
.size arrival_work.cold, . - arrival_work.cold

.type arrival_bare.cold.7, @function
arrival_bare.cold.7:
    ret
.size arrival_bare.cold.7, . - arrival_bare.cold.7
