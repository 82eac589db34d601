// As x86_64.s.
.macro rseq_add name, section
.pushsection \section, "aw"
.balign 32
.Ldescriptor_\name:
    .word 0, 0
    .word \name\()_start, 0, \name\()_commit - \name\()_start, 0, \name\()_abort, 0
.popsection
.text
.arm
.globl \name, \name\()_before, \name\()_arms, \name\()_start, \name\()_commit, \name\()_signature, \name\()_abort
.type \name, %function
\name:
    ldr r2, 1f
2:  add r2, pc, r2
\name\()_before:
    nop
\name\()_arms:
    str r2, [r0, #8]
\name\()_start:
    ldr r3, [r0, #4]
    lsl r3, r3, #6
    ldr ip, [r1, r3]
    add ip, ip, #1
    str ip, [r1, r3]
\name\()_commit:
    bx lr
\name\()_signature:
    .word 0xe7f5def3
\name\()_abort:
    b \name
.size \name, . - \name
1:  .word .Ldescriptor_\name - (2b + 8)
.endm

rseq_add rseq_add, __rseq_cs
rseq_add rseq_add_plain, .data.rel.ro
