# FUNCTION and END around a function that compiled code calls. Where function pointers lead to descriptors
# (ELFv1), its name is a descriptor's: compiled code may call it through one.
.macro FUNCTION name
.balign 16
.globl \name
.type \name, @function
.if {elfv1}
.pushsection .opd, "aw"
.balign 8
\name:
    .quad .Lcode_\name, .TOC.@tocbase, 0
.popsection
.Lcode_\name:
.else
\name:
.endif
.endm
.macro END name
.if {elfv1}
.size \name, . - .Lcode_\name
.else
.size \name, . - \name
.endif
.endm
