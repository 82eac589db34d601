/*
 * A 64-bit kernel for QEMU's PVH boot: 2 MiB pages, of which none is writable and executable at once. The same memory appears a
 * second time 1 GiB further up, writable and not executable: through that alias text is written.
 */
	.section .note.Xen, "a", @note
	.balign 4
	.long 4, 4, 18                          /* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.long start32

	.section .text.boot, "ax", @progbits
	.code32
	.globl start32
start32:
	cld
	cli
	movl $alias_pd, %edi
	movl $boot_pd, %esi
	movl $0x83, %eax                        /* present, writable, 2 MiB */
	movl $512, %ecx
1:	movl %eax, (%esi)
	movl $0x80000000, 4(%esi)               /* not executable */
	movl %eax, (%edi)
	movl $0x80000000, 4(%edi)
	addl $0x200000, %eax
	addl $8, %esi
	addl $8, %edi
	loop 1b
	movl $0x200081, boot_pd + 8             /* text: read-only and executable */
	movl $0, boot_pd + 12
	movl $0x800081, boot_pd + 32            /* slots and stubs: the same */
	movl $0, boot_pd + 36
	movl $boot_pd + 3, boot_pdpt
	movl $alias_pd + 3, boot_pdpt + 8
	movl $boot_pdpt + 3, boot_pml4
	movl $boot_pml4, %eax
	movl %eax, %cr3
	movl $0xa0, %eax                        /* PAE, PGE */
	movl %eax, %cr4
	movl $0xc0000080, %ecx                  /* EFER: LME, NXE */
	rdmsr
	orl $0x900, %eax
	wrmsr
	movl $0x80010013, %eax                  /* PG, WP, ET, MP, PE */
	movl %eax, %cr0
	lgdt gdt_pointer
	ljmp $8, $start64

	.code64
start64:
	movl $16, %eax
	movl %eax, %ds
	movl %eax, %es
	movl %eax, %ss
	movl $boot_stack_top, %esp
	xorl %ebp, %ebp
	call kernel_main
	ud2

/* Trap entries: the frame is `struct pt_regs`. */
	.macro SAVE_REST
	pushq %rdi
	pushq %rsi
	pushq %rdx
	pushq %rcx
	pushq %rax
	pushq %r8
	pushq %r9
	pushq %r10
	pushq %r11
	pushq %rbx
	pushq %rbp
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	cld
	.endm

/* Room below the interrupted stack pointer, for what a simulated CALL or PUSH writes there. */
	.set GAP, 256

	.globl breakpoint_entry
breakpoint_entry:
	pushq $0                                /* orig_ax */
	subq $(GAP - 48), %rsp
	.rept 6                                 /* orig_ax, ip, cs, flags, sp, ss once more, below the gap */
	pushq (GAP - 8)(%rsp)
	.endr
	SAVE_REST
	movq %rsp, %rdi
	subq $8, %rsp
	call on_breakpoint
	addq $8, %rsp
	jmp restore

/* Faults whose error code the processor pushes. */
	.macro FAULT name, vector
	.globl \name
\name:
	SAVE_REST
	movq %rsp, %rdi
	movl $\vector, %esi
	call on_fault
	jmp restore
	.endm
	FAULT protection_entry, 13
	FAULT page_fault_entry, 14

restore:
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbp
	popq %rbx
	popq %r11
	popq %r10
	popq %r9
	popq %r8
	popq %rax
	popq %rcx
	popq %rdx
	popq %rsi
	popq %rdi
	addq $8, %rsp
	iretq

	.section .rodata, "a"
	.balign 8
gdt:
	.quad 0
	.quad 0x00af9b000000ffff                /* code, 64 bits, already accessed: the table is read-only */
	.quad 0x00cf93000000ffff                /* data */
gdt_pointer:
	.word . - gdt - 1
	.long gdt
	.long 0

	.section .bss
	.balign 4096
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd: .skip 4096
alias_pd: .skip 4096
boot_stack: .skip 65536
boot_stack_top:
	.section .note.GNU-stack, "", @progbits
