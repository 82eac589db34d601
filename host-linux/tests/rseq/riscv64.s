# As x86_64.s.
.macro rseq_add name, section
.pushsection \section, "aw"
.balign 32
.Ldescriptor_\name:
    .word 0, 0
    .quad \name\()_start, \name\()_commit - \name\()_start, \name\()_abort
.popsection
.text
.globl \name, \name\()_before, \name\()_arms, \name\()_start, \name\()_commit, \name\()_signature, \name\()_abort
.type \name, @function
\name:
.option push
.option norelax
.option norvc
.cfi_startproc
    lla a2, .Ldescriptor_\name
\name\()_before:
    // A jump there would displace what follows, too.
    .option rvc
    c.nop
    .option norvc
\name\()_arms:
    sd a2, 8(a0)
\name\()_start:
    lwu a3, 4(a0)
    slli a3, a3, 6
    add a3, a1, a3
    ld a4, (a3)
    addi a4, a4, 1
    sd a4, (a3)
\name\()_commit:
    ret
\name\()_signature:
    .word 0xf1401073
\name\()_abort:
    j \name
.cfi_endproc
.option pop
.size \name, . - \name
.endm

rseq_add rseq_add, __rseq_cs
rseq_add rseq_add_plain, .data.rel.ro
