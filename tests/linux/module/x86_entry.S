/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Resumes with registers that a breakpoint has left, after what it could not write below its own frame
 * has been written (x86.c).
 */
	.text
	.globl stage_entry
	.type stage_entry, @function
stage_entry:
	subq $1024, %rsp		/* below what is written */
	andq $-16, %rsp
	call stage_write		/* answers the registers */
	movq %rax, %rsi
	subq $168, %rsp			/* as long as struct pt_regs */
	movq %rsp, %rdi
	movl $21, %ecx
	rep movsq
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
	addq $8, %rsp			/* orig_ax */
	iretq
	.size stage_entry, . - stage_entry
	.section .note.GNU-stack, "", @progbits
