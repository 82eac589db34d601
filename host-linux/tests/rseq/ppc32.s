# As x86_64.s, with the address of the descriptor's pointer given by the caller in r5.
.macro rseq_add name, section
.pushsection \section, "aw"
.balign 32
.globl \name\()_descriptor
\name\()_descriptor:
    .long 0, 0
    .long 0, \name\()_start, 0, \name\()_commit - \name\()_start, 0, \name\()_abort
.popsection
.text
.balign 16
.globl \name\()_before, \name\()_arms, \name\()_start, \name\()_commit, \name\()_signature, \name\()_abort
.type \name, @function
\name:
.cfi_startproc
    mr 6, 5
\name\()_before:
    nop
\name\()_arms:
    stw 6, 12(3)
\name\()_start:
    lwz 7, 4(3)
    slwi 7, 7, 6
    lwzx 8, 4, 7
    addi 8, 8, 1
    stwx 8, 4, 7
\name\()_commit:
    blr
\name\()_signature:
    .long 0x0fe5000b
\name\()_abort:
    b \name
.cfi_endproc
.size \name, . - \name
.endm

rseq_add rseq_add, __rseq_cs
rseq_add rseq_add_plain, .data.rel.ro
