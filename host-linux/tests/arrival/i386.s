.text
.globl arrival_work
.type arrival_work, @function
arrival_work:
.cfi_startproc
    sub $44, %esp
    .cfi_adjust_cfa_offset 44
    mov 48(%esp), %eax
    mov %eax, (%esp)
    cmp $100, %eax
    ja arrival_work.cold
    add $1, %eax
    add $44, %esp
    .cfi_adjust_cfa_offset -44
    ret
.cfi_endproc
.size arrival_work, . - arrival_work

.type arrival_work.cold, @function
arrival_work.cold:
.cfi_startproc
    .cfi_adjust_cfa_offset 44
    mov (%esp), %eax
    add $1000, %eax
    add $44, %esp
    .cfi_adjust_cfa_offset -44
    ret
.cfi_endproc
.size arrival_work.cold, . - arrival_work.cold

.type arrival_bare.cold.7, @function
arrival_bare.cold.7:
    ret
.size arrival_bare.cold.7, . - arrival_bare.cold.7

.type arrival_thunk, @function
arrival_thunk:
.cfi_startproc
    mov (%esp), %edx
    ret
.cfi_endproc
.size arrival_thunk, . - arrival_thunk
