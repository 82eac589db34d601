# What compiled code calls and this target's library does not bring.
.section .text.mem, "ax", @progbits
.globl memcpy, memmove, memset, memcmp, bcmp
memmove:
    movl 4(%esp), %eax
    cmpl 8(%esp), %eax
    jbe memcpy
    pushl %esi
    pushl %edi
    movl 12(%esp), %edi
    movl 16(%esp), %esi
    movl 20(%esp), %ecx
    leal -1(%esi,%ecx), %esi
    leal -1(%edi,%ecx), %edi
    std
    rep movsb
    cld
    popl %edi
    popl %esi
    ret

memcpy:
    pushl %esi
    pushl %edi
    movl 12(%esp), %edi
    movl 16(%esp), %esi
    movl 20(%esp), %ecx
    movl %edi, %eax
    movl %ecx, %edx
    shrl $2, %ecx
    rep movsl
    movl %edx, %ecx
    andl $3, %ecx
    rep movsb
    popl %edi
    popl %esi
    ret

memset:
    pushl %edi
    movl 8(%esp), %edi
    movzbl 12(%esp), %eax
    movl 16(%esp), %ecx
    movl %edi, %edx
    rep stosb
    movl %edx, %eax
    popl %edi
    ret

memcmp:
bcmp:
    pushl %esi
    pushl %edi
    movl 12(%esp), %edi
    movl 16(%esp), %esi
    movl 20(%esp), %ecx
    xorl %eax, %eax
    cmpl %eax, %eax
    repe cmpsb
    je 1f
    movzbl -1(%esi), %edx
    movzbl -1(%edi), %eax
    subl %edx, %eax
1:  popl %edi
    popl %esi
    ret

.globl strlen
strlen:
    movl 4(%esp), %edx
    xorl %eax, %eax
1:  cmpb $0, (%edx,%eax)
    je 2f
    incl %eax
    jmp 1b
2:  ret

# Precompiled code mentions unwinding, which a kernel that aborts on panic never does.
.globl _Unwind_Resume, rust_eh_personality
_Unwind_Resume:
rust_eh_personality:
    ud2
