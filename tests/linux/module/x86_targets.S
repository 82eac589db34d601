/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is probed to measure the cost of a hit (cost.c): a function for each kind of instruction, and the place in it. */
	.macro target name
	.balign 16
	.globl target_\name, target_\name\()_at
	.type target_\name, @function
target_\name:
	.endm

	.text
	.globl targets_start, targets_end
targets_start:
target step
	nop
target_step_at:
	addq $1, %rax
	ret
	jmp *%rax			/* Linux takes no jump into a function that has this. */
target jmp
	nop
target_jmp_at:
	jmp 1f
	nop
1:	ret
	jmp *%rax
target jcc
	testq %rsp, %rsp
target_jcc_at:
	jne 1f
	nop
1:	ret
	jmp *%rax
target call
	nop
target_call_at:
	call 1f
	ret
1:	ret
	jmp *%rax
target ret
	nop
target_ret_at:
	ret
	jmp *%rax
target jump
target_jump_at:
	leaq 0x12345678(%rdi), %rax	/* as long as a jump */
	.byte 0x0f, 0x1f, 0x44, 0, 0
	ret
target trap
target_trap_at:
	int3
	ret
targets_end:
	.section .note.GNU-stack, "", @progbits
