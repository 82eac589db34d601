// As x86_64.s; the arguments are on the stack.
.macro rseq_add name, section
.pushsection \section, "aw"
.balign 32
.Ldescriptor_\name:
    .long 0, 0
    .long \name\()_start, 0, \name\()_commit - \name\()_start, 0, \name\()_abort, 0
.popsection
.text
.globl \name, \name\()_before, \name\()_arms, \name\()_start, \name\()_commit, \name\()_signature, \name\()_abort
.type \name, @function
\name:
.cfi_startproc
    push %ebx
    .cfi_adjust_cfa_offset 4
    mov 8(%esp), %ecx
    mov 12(%esp), %ebx
.Lagain_\name:
    call .Lhere_\name
.Lhere_\name:
    pop %eax
    add $(.Ldescriptor_\name - .Lhere_\name), %eax
\name\()_before:
    nop
\name\()_arms:
    mov %eax, 8(%ecx)
\name\()_start:
    mov 4(%ecx), %edx
    shl $6, %edx
    mov (%ebx,%edx), %eax
    .rept 20
    pause
    .endr
    inc %eax
    mov %eax, (%ebx,%edx)
\name\()_commit:
    pop %ebx
    .cfi_adjust_cfa_offset -4
    ret
\name\()_signature:
    .byte 0x0f, 0xb9, 0x3d
    .long 0x53053053
\name\()_abort:
    jmp .Lagain_\name
.cfi_endproc
.size \name, . - \name
.endm

rseq_add rseq_add, __rseq_cs
rseq_add rseq_add_plain, .data.rel.ro
