# PVH: 32-bit protected mode, flat segments, no paging. Turns on PAE paging (for the no-execute bit) with 2
# MiB pages, of which the one with text is read-only and executable, all others writable and not executable.
.section .note.Xen, "a", @note
.balign 4
.long 4, 4, 18                          # XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.long start32

.section .text.boot, "ax", @progbits
.globl start32
start32:
    cld
    cli
    movl $boot_pd, %edi
    movl $0x83, %eax                    # present, writable, 2 MiB
    movl $512, %ecx
1:  movl %eax, (%edi)
    movl $0x80000000, 4(%edi)           # not executable
    addl $0x200000, %eax
    addl $8, %edi
    loop 1b
    movl $0x3c200081, boot_pd + 8 * 0x1e1   # text
    movl $0, boot_pd + 8 * 0x1e1 + 4
    movl $boot_pd + 1, boot_pdpt
    movl $boot_pdpt, %eax
    movl $kernel_main, %edi
    movl $boot_stack_top, %esp
    jmp enter_paged

# Another CPU comes here from its trampoline: eax = the root table, esp = its stack, ebx = its number.
secondary_start32:
    movl $secondary_main, %edi

enter_paged:
    movl %eax, %cr3
    movl $0xa0, %eax                    # PAE, PGE
    movl %eax, %cr4
    movl $0xc0000080, %ecx              # EFER: NXE
    rdmsr
    orl $0x800, %eax
    wrmsr
    movl $0x80010015, %eax              # PG, WP, ET, EM, PE: floating point, which nobody saves, is a trap
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $8, $start_flat
start_flat:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %eax, %gs
    xorl %eax, %eax
    movl %eax, %fs
    xorl %ebp, %ebp
    andl $-16, %esp
    subl $12, %esp
    pushl %ebx
    call *%edi
    ud2

.section .rodata, "a"
.balign 8
boot_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff            # code, already accessed: the table is read-only
    .quad 0x00cf93000000ffff            # data
boot_gdt_pointer:
    .word . - boot_gdt - 1
    .long boot_gdt

.section .bss
.balign 4096
boot_pdpt: .skip 4096
boot_pd: .skip 4096
boot_stack: .skip 65536
boot_stack_top:
