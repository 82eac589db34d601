// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What a hit costs, ours and Linux's in one boot, in guest instructions: QEMU counts a tick of the time
 * stamp for each instruction (`-icount shift=0`). Handlers are empty, interrupts are off, the loop without
 * probes is subtracted; Linux's trap entry is in both.
 */
#include <linux/delay.h>
#include <linux/kdebug.h>
#include <linux/module.h>
#include "host.h"

typedef void (*call_t)(void);

#define TARGET(name) extern void target_##name(void); extern char target_##name##_at[]
TARGET(step); TARGET(jmp); TARGET(jcc); TARGET(call); TARGET(ret); TARGET(jump); TARGET(trap);

/* A function as the compiler makes them: the function tracer's bytes, then its own. */
static unsigned long constant;
static noinline void target_c(void) { asm volatile("movabs $0x1122334455667788, %%rax" ::: "rax"); constant++; }

#define TIMES 2048

static u64 run(call_t call)
{
	unsigned long flags;
	u64 begin;
	int left;

	local_irq_save(flags);
	preempt_disable();
	begin = rdtsc();
	for (left = TIMES; left; left--)
		call();
	begin = rdtsc() - begin;
	preempt_enable();
	local_irq_restore(flags);
	return begin;
}

/* The second run: the first one warms what is made at a first hit. */
static u64 measure(call_t call) { return run(call), run(call); }

static long each(u64 bare, u64 probed) { return ((long)probed - (long)bare + TIMES / 2) / TIMES; }

static int our_pre(struct our_kprobe *probe, struct pt_regs *regs) { return 0; }
static void our_post(struct our_kprobe *probe, struct pt_regs *regs, unsigned long flags) { }
static int our_return(struct our_kretprobe_instance *instance, struct pt_regs *regs) { return 0; }
static int their_pre(struct kprobe *probe, struct pt_regs *regs) { return 0; }
static void their_post(struct kprobe *probe, struct pt_regs *regs, unsigned long flags) { }
static int their_return(struct kretprobe_instance *instance, struct pt_regs *regs) { return 0; }

enum { POST = 1, TWO = 2, JUMP = 4 };
#define REFUSED LONG_MIN

static bool has_jump(void *at) { return *(u8 *)at == JMP32_INSN_OPCODE; }

/* Linux makes its jumps, and takes them away, some time after it was asked to. */
static void wait_for_jump(void *at, bool is_there)
{
	int tries;

	for (tries = 0; tries < 100 && has_jump(at) != is_there; tries++)
		msleep(20);
}

static long theirs(call_t call, void *at, int how)
{
	static struct kprobe one, other;
	u64 bare = measure(call);
	long cost = REFUSED;

	one = (struct kprobe) { .addr = at, .pre_handler = their_pre, .post_handler = how & POST ? their_post : NULL };
	other = one;
	if (register_kprobe(&one))
		return REFUSED;
	if (!(how & TWO) || !register_kprobe(&other)) {
		if (how & JUMP)
			wait_for_jump(at, true);
		if (!!(how & JUMP) == has_jump(at))
			cost = each(bare, measure(call));
	}
	if (how & TWO)
		unregister_kprobe(&other);
	unregister_kprobe(&one);
	wait_for_jump(at, false);
	return cost;
}

static long ours(call_t call, void *at, int how)
{
	static struct our_kprobe one, other;
	u64 bare = measure(call);
	long cost = REFUSED;

	one = (struct our_kprobe) { .addr = at, .pre_handler = our_pre, .post_handler = how & POST ? our_post : NULL };
	other = one;
	if (our_register_kprobe(&one)) {
		say("cost: %s", one.reason);
		return REFUSED;
	}
	if (!(how & TWO) || !our_register_kprobe(&other)) {
		if (how & JUMP)
			our_probe_optimise();
		if (!!(how & JUMP) == has_jump(at))
			cost = each(bare, measure(call));
	}
	if (how & TWO)
		our_unregister_kprobe(&other);
	our_unregister_kprobe(&one);
	return cost;
}

static long their_returns(call_t call, void *at, int how)
{
	static struct kretprobe one;
	u64 bare = measure(call);
	long cost = REFUSED;

	one = (struct kretprobe) { .kp.addr = at, .handler = their_return };
	if (register_kretprobe(&one))
		return REFUSED;
	if (how & JUMP)
		wait_for_jump(at, true);
	if (!!(how & JUMP) == has_jump(at))
		cost = each(bare, measure(call));
	unregister_kretprobe(&one);
	wait_for_jump(at, false);
	return cost;
}

static long our_returns(call_t call, void *at, int how)
{
	static struct our_kretprobe one;
	u64 bare = measure(call);
	long cost = REFUSED;

	one = (struct our_kretprobe) { .kp.addr = at, .handler = our_return };
	if (our_register_kretprobe(&one)) {
		say("cost: %s", one.kp.reason);
		return REFUSED;
	}
	if (how & JUMP)
		our_probe_optimise();
	if (!!(how & JUMP) == has_jump(at))
		cost = each(bare, measure(call));
	our_unregister_kretprobe(&one);
	return cost;
}

static int on_trap(struct notifier_block *block, unsigned long event, void *data)
{
	struct die_args *args = data;

	return event == DIE_INT3 && args->regs->ip == (unsigned long)target_trap_at + 1 ? NOTIFY_STOP : NOTIFY_DONE;
}

static struct notifier_block first = { .notifier_call = on_trap, .priority = INT_MAX };

static void row(const char *what, long theirs, long ours)
{
	char cell[2][24] = { "–", "–" };

	if (theirs != REFUSED)
		snprintf(cell[0], sizeof(cell[0]), "%ld", theirs);
	if (ours != REFUSED)
		snprintf(cell[1], sizeof(cell[1]), "%ld", ours);
	say("| %s | %s | %s |", what, cell[0], cell[1]);
}

#define ROW(what, name, how) row(what, theirs(target_##name, target_##name##_at, how), ours(target_##name, target_##name##_at, how))

int cost(char *argument)
{
	void *c = (void *)target_c + arch_entry_skip((unsigned long)target_c);
	u64 bare = measure(target_step) - 2 * TIMES;

	/* Without this library, which is told of it first. */
	arch_unhook();
	say("| guest instructions for each hit | Linux's | ours |");
	register_die_notifier(&first);
	row("a bare trap, to the first who is told of it and back", each(bare, measure(target_trap)), REFUSED);
	unregister_die_notifier(&first);
	arch_hooks();
	ROW("a kprobe, out of line", step, 0);
	ROW("with a post handler", step, POST);
	ROW("two on one place", step, TWO);
	ROW("a jump", jmp, 0);
	ROW("a conditional jump", jcc, 0);
	ROW("a call", call, 0);
	ROW("a return", ret, 0);
	ROW("by a jump", jump, JUMP);
	ROW("by a jump, two on one place", jump, JUMP | TWO);
	ROW("by a jump, with a post handler", jump, JUMP | POST);
	row("a kretprobe, by a trap", their_returns(target_step, target_step, 0), our_returns(target_step, target_step, 0));
	row("a kretprobe, by a jump", their_returns(target_jump, target_jump, JUMP), our_returns(target_jump, target_jump, JUMP));
	row("a C function's entry: Linux's by the function tracer, ours by a jump", theirs(target_c, target_c, 0), ours(target_c, c, JUMP));
	row("its return, too", their_returns(target_c, target_c, 0), our_returns(target_c, c, JUMP));
	return 0;
}

/* Whether a byte is a target's: the only text of this module that may be probed. */
extern char targets_start[], targets_end[];

bool is_target(unsigned long at)
{
	return at - (unsigned long)targets_start < (unsigned long)(targets_end - targets_start) || at - (unsigned long)target_c < 32;
}
