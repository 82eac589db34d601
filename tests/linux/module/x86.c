// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What of the host is x86-64's own: how text is written, where traps come in, and the narrow gap that
 * Linux leaves below a trap.
 */
#include <linux/ftrace.h>
#include <linux/kdebug.h>
#include <linux/module.h>
#include <linux/sched/task_stack.h>
#include <linux/sizes.h>
#include <linux/tracepoint.h>
#include <asm/extable.h>
#include <asm/switch_to.h>
#include <asm/text-patching.h>
#include <asm/trapnr.h>
#include "host.h"

unsigned long arch_near_low, arch_exec_low, arch_exec_high;
static typeof(text_poke) *poke;
static typeof(text_poke_sync) *poke_sync;
static typeof(fixup_exception) *fix_up;

int arch_start(void)
{
	/*
	 * Two GiB below the kernel are nobody's (Documentation/x86/x86_64/mm.rst): many a jump's
	 * displacement leads there.
	 */
	arch_near_low = __START_KERNEL_map - 2 * SZ_1G;
	arch_exec_low = MODULES_VADDR;
	arch_exec_high = MODULES_END;
	poke = (void *)symbol("text_poke");
	poke_sync = (void *)symbol("text_poke_sync");
	fix_up = (void *)symbol("fixup_exception");
	return poke && poke_sync && fix_up ? 0 : -ENOENT;
}

void arch_write_text(unsigned long at, const void *bytes, size_t len) { poke((void *)at, bytes, len); }
void arch_sync_cores(void) { poke_sync(); }

bool arch_begins_probe(u8 first) { return first == INT3_INSN_OPCODE || first == JMP32_INSN_OPCODE; }

size_t arch_original(struct kprobe *p, u8 *bytes)
{
	bytes[0] = p->opcode;
	if (!(p->flags & KPROBE_FLAG_OPTIMIZED) || *(u8 *)p->addr != JMP32_INSN_OPCODE)
		return 1;
	memcpy(bytes + 1, container_of(p, struct optimized_kprobe, kp)->optinsn.copied_insn, DISP32_SIZE);
	return JMP32_INSN_SIZE;
}

unsigned long arch_entry_skip(unsigned long start)
{
	return kernel.ftrace_location && kernel.ftrace_location(start) == start ? MCOUNT_INSN_SIZE : 0;
}

unsigned long arch_stack_pointer(struct task_struct *task) { return task->thread.sp; }

/*
 * Interrupts stay away from slots. They come again, or not, as the stepped instruction has left it.
 */
probe_u64 arch_enter_slot(struct pt_regs *regs)
{
	probe_u64 kept = regs->flags & X86_EFLAGS_IF;

	regs->flags &= ~(unsigned long)X86_EFLAGS_IF;
	return kept;
}

void arch_leave_slot(struct pt_regs *regs, probe_u64 kept)
{
	regs->flags = (regs->flags & ~(unsigned long)X86_EFLAGS_IF) | kept;
}

/* ---- below the interrupted stack pointer --------------------------------------------------------- */

/*
 * Linux leaves room for a CALL's push below a breakpoint's stack pointer, not for a jprobe's
 * arguments.
 */
#define GAP 48
#define STAGED 256

/*
 * What is to be written farther down waits, with the registers, until the trap has been left:
 * x86_entry.S then runs on the interrupted stack, interrupts off, has the bytes written, and resumes
 * with the registers.
 */
struct stage {
	unsigned long stack;	/* of the breakpoint that is being handled; 0: none is */
	unsigned long at;
	size_t len;		/* 0: nothing waits */
	u8 bytes[STAGED];
	struct pt_regs regs;
};
static struct stage stages[NR_CPUS];

asmlinkage void stage_entry(void);
asmlinkage struct pt_regs *stage_write(void);

asmlinkage struct pt_regs *stage_write(void)
{
	struct stage *stage = &stages[raw_smp_processor_id()];

	memcpy((void *)stage->at, stage->bytes, stage->len);
	stage->len = 0;
	return &stage->regs;
}

size_t arch_write_memory(unsigned long at, const void *bytes, size_t len)
{
	struct stage *stage = &stages[raw_smp_processor_id()];

	if (likely(stage->stack - at - 1 >= STAGED || stage->stack - at <= GAP))
		return host_write(at, bytes, len);
	if (stage->len || len > STAGED)
		return 0;
	memcpy(stage->bytes, bytes, len);
	stage->at = at;
	stage->len = len;
	return len;
}

static int breakpoint(struct pt_regs *regs)
{
	struct stage *stage = &stages[raw_smp_processor_id()];
	unsigned long outer = stage->stack, fault_address = 0;
	int verdict;

	stage->stack = regs->sp;
	verdict = our_probe_breakpoint(regs, &fault_address);
	if (unlikely(stage->len)) {
		stage->regs = *regs;
		regs->ip = (unsigned long)stage_entry;
		regs->sp = stage->stack;
		regs->flags &= ~(unsigned long)X86_EFLAGS_IF;
		atomic_long_inc(&host_counts.staged);
	}
	stage->stack = outer;
	if (verdict == PROBE_FAULT) {
		atomic_long_inc(&host_counts.fixed);
		return fix_up(regs, X86_TRAP_PF, 0, fault_address) ? NOTIFY_STOP : NOTIFY_DONE;
	}
	return verdict == PROBE_HANDLED ? NOTIFY_STOP : NOTIFY_DONE;
}

static int fault(struct pt_regs *regs, int trap)
{
	unsigned long flags;
	int verdict;

	local_irq_save(flags);
	verdict = our_probe_fault(regs, trap);
	local_irq_restore(flags);
	if (verdict != PROBE_NOT_OURS)
		atomic_long_inc(&host_counts.faults);
	return verdict == PROBE_HANDLED ? NOTIFY_STOP : NOTIFY_DONE;
}

static int on_die(struct notifier_block *block, unsigned long event, void *data)
{
	struct die_args *args = data;

	if (user_mode(args->regs))
		return NOTIFY_DONE;
	switch (event) {
	case DIE_INT3:
		return breakpoint(args->regs);
	case DIE_GPF:
	case DIE_TRAP:
		return fault(args->regs, args->trapnr);
	default:
		return NOTIFY_DONE;
	}
}

static struct notifier_block traps = { .notifier_call = on_die, .priority = INT_MAX };

/*
 * Tracepoint exceptions:page_fault_kernel, which runs before the fault is looked at. It cannot end the
 * fault: what a handler has dealt with is looked at once more by Linux, with the registers as they are
 * now.
 */
static void on_page_fault(void *cookie, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	if (!user_mode(regs))
		fault(regs, X86_TRAP_PF);
}

static struct tracepoint *page_fault;

static void see_tracepoint(struct tracepoint *tracepoint, void *cookie)
{
	if (!strcmp(tracepoint->name, "page_fault_kernel"))
		page_fault = tracepoint;
}

void arch_hooks(void)
{
	for_each_kernel_tracepoint(see_tracepoint, NULL);
	if (page_fault)
		tracepoint_probe_register(page_fault, on_page_fault, NULL);
	register_die_notifier(&traps);
}

void arch_unhook(void)
{
	unregister_die_notifier(&traps);
	if (page_fault)
		tracepoint_probe_unregister(page_fault, on_page_fault, NULL);
}
