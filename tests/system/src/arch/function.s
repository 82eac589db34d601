// FUNCTION and END around a function that compiled code calls.
.macro FUNCTION name
.balign 16
.globl \name
.type \name, %function
\name:
.endm
.macro END name
.size \name, . - \name
.endm
