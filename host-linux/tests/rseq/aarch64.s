// As x86_64.s.
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
.cfi_startproc
    adrp x2, .Ldescriptor_\name
    add x2, x2, :lo12:.Ldescriptor_\name
\name\()_before:
    nop
\name\()_arms:
    str x2, [x0, #8]
\name\()_start:
    ldr w3, [x0, #4]
    lsl x3, x3, #6
    ldr x4, [x1, x3]
    add x4, x4, #1
    str x4, [x1, x3]
\name\()_commit:
    ret
\name\()_signature:
    .inst 0xd428bc00
\name\()_abort:
    b \name
.cfi_endproc
.size \name, . - \name
.endm

rseq_add rseq_add, __rseq_cs
rseq_add rseq_add_plain, .data.rel.ro
