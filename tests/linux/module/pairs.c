// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Our kprobe and kretprobe beside Linux's own on the same functions, under load: both have to see the
 * same.
 *
 * Linux's stand at the functions' first bytes, ours right behind them, and a task can be preempted in
 * between. So counting begins, and ends, at a moment at which no task is there: at which as many hits
 * of one kind have been seen as of the other since both were planted. Such a moment never comes again
 * if either has lost a hit, or seen one too many.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/stop_machine.h>
#include "host.h"

struct pair {
	const char *name;
	bool never_returns;
	struct our_kprobe ours;
	struct kprobe theirs;
	struct our_kretprobe our_return;
	struct kretprobe their_return;
	/* Hits since both were planted, whether counted or not. */
	atomic_long_t our_all, their_all;
	/* Of the calls that were entered while hits were counted: entries and returns. */
	atomic_long_t our_calls, their_calls, our_returns, their_returns;
	atomic_long_t wrong;
	/* When hits began to be counted. */
	long our_first, their_first, first_missed, first_missed_returns;
	/* The least difference that was seen: that without a task between the two. */
	long difference;
};

#define RETURNS(function) { .name = function }
#define NEVER_RETURNS(function) { .name = function, .never_returns = true }

static struct pair pairs[] = {
	RETURNS("kernel_clone"), RETURNS("do_sys_openat2"), RETURNS("vfs_read"), RETURNS("vfs_write"), RETURNS("handle_mm_fault"),
	NEVER_RETURNS("do_exit"), RETURNS("try_to_wake_up"), RETURNS("update_process_times"), RETURNS("hrtimer_interrupt"),
	RETURNS("ip_rcv"), RETURNS("icmp_rcv"), RETURNS("arp_process"), RETURNS("fib_table_lookup"), RETURNS("kfree"),
	RETURNS("kmem_cache_free"),
};

#define for_each_pair(at) for ((at) = pairs; (at) < pairs + ARRAY_SIZE(pairs); (at)++)

/* Changed while all CPUs stand still. */
static bool is_counting;

#define MAGIC 0x600dda7aul

struct call {
	unsigned long magic, stack, returns_to;
	struct task_struct *task;
	bool is_counted;
};

static int our_hit(struct our_kprobe *probe, struct pt_regs *regs)
{
	struct pair *at = container_of(probe, struct pair, ours);

	atomic_long_inc(&at->our_all);
	if ((void *)instruction_pointer(regs) != probe->addr)
		atomic_long_inc(&at->wrong);
	return 0;
}

static int their_hit(struct kprobe *probe, struct pt_regs *regs)
{
	atomic_long_inc(&container_of(probe, struct pair, theirs)->their_all);
	return 0;
}

static int our_entry(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	struct call *call = instance->data;

	*call = (struct call) {
		MAGIC, kernel_stack_pointer(regs), (unsigned long)instance->ret_addr, current, READ_ONCE(is_counting),
	};
	if (call->is_counted)
		atomic_long_inc(&container_of(instance->rp, struct pair, our_return)->our_calls);
	return 0;
}

static int our_exit(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	struct pair *at = container_of(instance->rp, struct pair, our_return);
	struct call *call = instance->data;

	if (call->is_counted)
		atomic_long_inc(&at->our_returns);
	if (call->magic != MAGIC || call->task != current || call->returns_to != (unsigned long)instance->ret_addr ||
	    (IS_ENABLED(CONFIG_X86) && kernel_stack_pointer(regs) != call->stack + sizeof(long)))
		atomic_long_inc(&at->wrong);
	return 0;
}

static int their_entry(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	bool *is_counted = (bool *)instance->data;

	*is_counted = READ_ONCE(is_counting);
	if (*is_counted)
		atomic_long_inc(&container_of(get_kretprobe(instance), struct pair, their_return)->their_calls);
	return 0;
}

static int their_exit(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	if (*(bool *)instance->data)
		atomic_long_inc(&container_of(get_kretprobe(instance), struct pair, their_return)->their_returns);
	return 0;
}

static struct our_probe_counters counters(struct our_kprobe *probe)
{
	struct our_probe_counters counters = { 0 };

	our_kprobe_counters(probe, &counters);
	return counters;
}

/* Hits, those whose handlers were skipped included: a hit inside another one. */
static long our_hits(struct pair *at) { return atomic_long_read(&at->our_all) + counters(&at->ours).missed_nested; }
static long their_hits(struct pair *at) { return atomic_long_read(&at->their_all) + at->theirs.nmissed; }

int pairs_on(char *argument)
{
	struct pair *at;

	for_each_pair(at) {
		int ours, theirs, our_return = 0, their_return = 0;

		*at = (struct pair) {
			.name = at->name, .never_returns = at->never_returns, .difference = LONG_MAX,
			.ours = { .symbol_name = at->name, .pre_handler = our_hit },
			.theirs = { .symbol_name = at->name, .pre_handler = their_hit },
			.our_return = { .kp.symbol_name = at->name, .entry_handler = our_entry, .handler = our_exit,
					.data_size = sizeof(struct call), .maxactive = 512 },
			.their_return = { .kp.symbol_name = at->name, .entry_handler = their_entry, .handler = their_exit,
					  .data_size = sizeof(bool), .maxactive = 512 },
		};
		ours = our_register_kprobe(&at->ours);
		theirs = register_kprobe(&at->theirs);
		if (!at->never_returns) {
			our_return = our_register_kretprobe(&at->our_return);
			their_return = register_kretprobe(&at->their_return);
		}
		if (ours || theirs || our_return || their_return) {
			say("%s: ours %d %s, return %d %s; Linux's %d, return %d", at->name, ours, at->ours.reason, our_return,
			    at->our_return.kp.reason, theirs, their_return);
			return -EINVAL;
		}
	}
	return 0;
}

/*
 * How often the CPUs stand still until one look counts as the last: no task is preempted that often in
 * a row at one instruction.
 */
#define LOOKS 5000

static int take_difference(void *cookie)
{
	struct pair *at;

	for_each_pair(at)
		at->difference = min(at->difference, their_hits(at) - our_hits(at));
	return 0;
}

static int is_between(struct pair *at) { return their_hits(at) - our_hits(at) != at->difference; }

/* Begins to count, or ends, if no task is between two probes. */
static int change_counting(void *to)
{
	struct pair *at;

	for_each_pair(at)
		if (is_between(at))
			return -EAGAIN;
	for_each_pair(at) {
		if (!to)
			continue;
		at->our_first = atomic_long_read(&at->our_all);
		at->their_first = atomic_long_read(&at->their_all);
		at->first_missed = counters(&at->ours).missed_nested;
		at->first_missed_returns = counters(&at->our_return.kp).missed_nested;
	}
	WRITE_ONCE(is_counting, to != NULL);
	return 0;
}

/* The same calls wait to return on both sides: all that returned were seen by both. */
static int compare_returns(void *cookie)
{
	struct pair *at;

	for_each_pair(at) {
		struct our_probe_counters returns = counters(&at->our_return.kp);
		long missed = returns.missed_nested - at->first_missed_returns;
		long missed_entries = counters(&at->ours).missed_nested - at->first_missed;
		long ours = atomic_long_read(&at->our_calls) - atomic_long_read(&at->our_returns) - (missed - missed_entries);
		long theirs = atomic_long_read(&at->their_calls) - atomic_long_read(&at->their_returns);

		if (!at->never_returns && ours != theirs)
			return -EAGAIN;
	}
	return 0;
}

static int look_until(int (*look)(void *cookie), void *cookie)
{
	int looks, error = -EAGAIN;

	for (looks = 0; looks < LOOKS && error; looks++) {
		error = stop_machine(look, cookie, NULL);
		if (error)
			usleep_range(200, 2000);
	}
	return error;
}

int pairs_count(char *argument)
{
	int looks;

	for (looks = 0; looks < 64; looks++) {
		stop_machine(take_difference, NULL, NULL);
		usleep_range(200, 1000);
	}
	if (look_until(change_counting, (void *)1)) {
		say("pairs: there is no moment at which the counts agree, before the load");
		return -EIO;
	}
	return 0;
}

int pairs_report(char *argument)
{
	int entries = look_until(change_counting, NULL), returns = entries ? 0 : look_until(compare_returns, NULL), error = 0;
	struct pair *at;

	WRITE_ONCE(is_counting, false);
	for_each_pair(at) {
		struct our_probe_counters own = counters(&at->ours), ret = counters(&at->our_return.kp);
		long ours = atomic_long_read(&at->our_all) - at->our_first;

		say("pair %-20s ours %7ld Linux's %7ld | returns: ours %7ld Linux's %7ld | missed: ours %lu, of returns %lu, no room %lu, abandoned %lu, Linux's %lu, no room %d | wrong %ld",
		    at->name, ours, atomic_long_read(&at->their_all) - at->their_first, atomic_long_read(&at->our_returns),
		    atomic_long_read(&at->their_returns), own.missed_nested, ret.missed_nested, ret.missed_pool, ret.abandoned,
		    at->theirs.nmissed, at->their_return.nmissed, atomic_long_read(&at->wrong));
		if (atomic_long_read(&at->wrong) || !ours || ret.missed_pool || at->their_return.nmissed)
			error = -EIO;
	}
	if (entries)
		say("pairs: the counts of hits never agree after the load");
	if (returns)
		say("pairs: the counts of returns never agree after the load");
	return entries || returns ? -EIO : error;
}

int pairs_off(char *argument)
{
	struct pair *at;
	int error = 0;

	for_each_pair(at) {
		if (!at->never_returns) {
			unregister_kretprobe(&at->their_return);
			error = our_unregister_kretprobe(&at->our_return) ?: error;
		}
		unregister_kprobe(&at->theirs);
		error = our_unregister_kprobe(&at->ours) ?: error;
	}
	return error;
}

/* Registers and removes all of them, again and again. */
int churn(char *times)
{
	int left, error = kstrtoint(times, 10, &left);

	for (; !error && left > 0; left--) {
		error = pairs_on(NULL);
		if (!error && left % 2)
			error = min(our_probe_optimise(), 0L);
		/* Time for hits. */
		usleep_range(1000, 4000);
		error = pairs_off(NULL) ?: error;
	}
	return error;
}
