// rseq_add(area, counts): one more in the running CPU's cell, 64 bytes each, without a lock. The descriptor
// of rseq_add is in __rseq_cs, that of rseq_add_plain among the program's data.
.macro rseq_add name, section
.pushsection \section, "aw"
.balign 32
.Ldescriptor_\name:
    .long 0, 0
    .quad \name\()_start, \name\()_commit - \name\()_start, \name\()_abort
.popsection
.text
.globl \name, \name\()_before, \name\()_arms, \name\()_start, \name\()_commit, \name\()_signature, \name\()_abort
.type \name, @function
\name:
.cfi_startproc
    lea .Ldescriptor_\name(%rip), %rax
\name\()_before:
    nop
\name\()_arms:
    mov %rax, 8(%rdi)
\name\()_start:
    mov 4(%rdi), %edx
    shl $6, %rdx
    mov (%rsi,%rdx), %rcx
    .rept 20
    pause
    .endr
    inc %rcx
    mov %rcx, (%rsi,%rdx)
\name\()_commit:
    ret
\name\()_signature:
    .byte 0x0f, 0xb9, 0x3d
    .long 0x53053053
\name\()_abort:
    jmp \name
.cfi_endproc
.size \name, . - \name
.endm

rseq_add rseq_add, __rseq_cs
rseq_add rseq_add_plain, .data.rel.ro
