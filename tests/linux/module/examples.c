// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What the first examples of kprobes, jprobes and kretprobes showed, on the functions that are now
 * where those were.
 */
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <net/ip_fib.h>
#include <net/sock.h>
#include "host.h"

/* ---- a kprobe, a jprobe and a kretprobe on kernel_clone ------------------------------------------ */

#define REMEMBERED 64

static atomic_long_t clones, clone_posts, clone_arguments, signals_at_exit, clone_returns;
static long children[REMEMBERED];
static u64 longest;

static int clone_hit(struct our_kprobe *probe, struct pt_regs *regs)
{
	atomic_long_inc(&clones);
	return 0;
}

static void clone_post(struct our_kprobe *probe, struct pt_regs *regs, unsigned long flags) { atomic_long_inc(&clone_posts); }

static pid_t clone_called(struct kernel_clone_args *args)
{
	atomic_long_inc(&clone_arguments);
	if (args->exit_signal == SIGCHLD)
		atomic_long_inc(&signals_at_exit);
	our_jprobe_return();
}

/* Not for kernel threads: they have no memory of a user. */
static int clone_entered(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	*(u64 *)instance->data = ktime_get_ns();
	return !current->mm;
}

static int clone_returned(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	u64 took = ktime_get_ns() - *(u64 *)instance->data;

	children[atomic_long_inc_return(&clone_returns) % REMEMBERED] = our_regs_return_value(regs);
	longest = max(longest, took);
	return 0;
}

static struct our_kprobe clone_probe = {
	.symbol_name = "kernel_clone", .pre_handler = clone_hit, .post_handler = clone_post,
};
static struct our_jprobe clone_jprobe = { .kp.symbol_name = "kernel_clone", .entry = clone_called };
static struct our_kretprobe clone_return = {
	.kp.symbol_name = "kernel_clone", .entry_handler = clone_entered, .handler = clone_returned, .data_size = sizeof(u64),
	.maxactive = 20,
};

/* ---- failed opens: a jprobe that reads a path, a kretprobe that looks at failures only ----------- */

static const char missing[] = "/there-is-no-such-file";
static atomic_long_t opens_of_missing, failed_opens, other_opens;

static long open_called(int folder, const char __user *path, struct open_how *how)
{
	char name[sizeof(missing)];

	if (!copy_from_user_nofault(name, path, sizeof(name)) && !memcmp(name, missing, sizeof(name)))
		atomic_long_inc(&opens_of_missing);
	our_jprobe_return();
}

static int open_returned(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	long answer = our_regs_return_value(regs);

	atomic_long_inc(answer == -ENOENT ? &failed_opens : &other_opens);
	return 0;
}

static struct our_jprobe open_jprobe = { .kp.symbol_name = "do_sys_openat2", .entry = open_called };
static struct our_kretprobe open_return = { .kp.symbol_name = "do_sys_openat2", .handler = open_returned, .maxactive = 20 };

/* ---- a chain of calls: ARP asks for a route ------------------------------------------------------ */

static atomic_long_t arps, arp_returns, routes, routes_of_arps, kinds[__RTN_MAX];
static struct task_struct *in_arp[NR_CPUS];

static int arp_called(struct net *net, struct sock *sk, struct sk_buff *skb)
{
	atomic_long_inc(&arps);
	in_arp[raw_smp_processor_id()] = current;
	our_jprobe_return();
}

static int arp_returned(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	atomic_long_inc(&arp_returns);
	in_arp[raw_smp_processor_id()] = NULL;
	return 0;
}

/* The third argument, which the call fills. */
static int route_entered(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	*(struct fib_result **)instance->data = (void *)our_regs_get_kernel_argument(regs, 2);
	return 0;
}

static int route_returned(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	struct fib_result *result = *(struct fib_result **)instance->data;

	atomic_long_inc(&routes);
	if (!our_regs_return_value(regs) && result->type < __RTN_MAX)
		atomic_long_inc(&kinds[result->type]);
	if (in_arp[raw_smp_processor_id()] == current)
		atomic_long_inc(&routes_of_arps);
	return 0;
}

static struct our_jprobe arp_jprobe = { .kp.symbol_name = "arp_process", .entry = arp_called };
static struct our_kretprobe arp_return = { .kp.symbol_name = "arp_process", .handler = arp_returned };
static struct our_kretprobe route_return = {
	.kp.symbol_name = "fib_table_lookup", .entry_handler = route_entered, .handler = route_returned, .data_size = sizeof(void *),
};

/* ---- together ------------------------------------------------------------------------------------ */

static struct our_jprobe *jprobes[] = { &clone_jprobe, &open_jprobe, &arp_jprobe };
static struct our_kretprobe *returns[] = { &clone_return, &open_return, &arp_return, &route_return };

int examples_on(char *argument)
{
	int error = our_register_kprobe(&clone_probe), i;

	for (i = 0; !error && i < ARRAY_SIZE(jprobes); i++) {
		error = our_register_jprobe(jprobes[i]);
		if (error)
			say("jprobe on %s: %d %s", jprobes[i]->kp.symbol_name, error, jprobes[i]->kp.reason);
	}
	return error ?: our_register_kretprobes(returns, ARRAY_SIZE(returns));
}

/* Whether kernel_clone was seen to answer this process. */
int example_forked(char *argument)
{
	long pid;
	int i;

	if (kstrtol(argument, 10, &pid))
		return -EINVAL;
	for (i = 0; i < REMEMBERED; i++)
		if (children[i] == pid)
			return 0;
	say("kernel_clone has not answered %ld", pid);
	return -EIO;
}

int examples_report(char *argument)
{
	say("kernel_clone: %ld hits, %ld after, %ld calls, %ld with SIGCHLD, %ld returns, the longest after %llu ns", atomic_long_read(&clones),
	    atomic_long_read(&clone_posts), atomic_long_read(&clone_arguments), atomic_long_read(&signals_at_exit),
	    atomic_long_read(&clone_returns), longest);
	say("do_sys_openat2: %ld of %s, %ld failed so, %ld others", atomic_long_read(&opens_of_missing), missing,
	    atomic_long_read(&failed_opens), atomic_long_read(&other_opens));
	say("arp_process: %ld calls, %ld returns; fib_table_lookup: %ld, %ld in ARP, %ld of them local, %ld unicast", atomic_long_read(&arps),
	    atomic_long_read(&arp_returns), atomic_long_read(&routes), atomic_long_read(&routes_of_arps),
	    atomic_long_read(&kinds[RTN_LOCAL]), atomic_long_read(&kinds[RTN_UNICAST]));
	if (!atomic_long_read(&signals_at_exit) || atomic_long_read(&clones) != atomic_long_read(&clone_posts) ||
	    atomic_long_read(&clones) != atomic_long_read(&clone_arguments) || !longest || !atomic_long_read(&opens_of_missing) ||
	    !atomic_long_read(&failed_opens) || !atomic_long_read(&other_opens) || !atomic_long_read(&arps) ||
	    atomic_long_read(&arps) != atomic_long_read(&arp_returns) || !atomic_long_read(&routes_of_arps) ||
	    !atomic_long_read(&kinds[RTN_LOCAL]))
		return -EIO;
	return 0;
}

int examples_off(char *argument)
{
	int error = our_unregister_kretprobes(returns, ARRAY_SIZE(returns));

	error = our_unregister_jprobes(jprobes, ARRAY_SIZE(jprobes)) ?: error;
	return our_unregister_kprobe(&clone_probe) ?: error;
}

/* ---- one return probe, for calls that wait ------------------------------------------------------- */

static struct our_kretprobe one;
static atomic_long_t entered, returned;
static char one_name[64];

static int one_entered(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	atomic_long_inc(&entered);
	return 0;
}

static int one_returned(struct our_kretprobe_instance *instance, struct pt_regs *regs)
{
	atomic_long_inc(&returned);
	return 0;
}

int follow(char *name)
{
	strscpy(one_name, name, sizeof(one_name));
	one = (struct our_kretprobe) {
		.kp.symbol_name = one_name, .entry_handler = one_entered, .handler = one_returned, .maxactive = 64,
	};
	return our_register_kretprobe(&one);
}

/* An error if no call is still to return, or if any had no room. */
int follow_off(char *argument)
{
	struct our_probe_counters counters = { 0 };
	bool is_pending = atomic_long_read(&entered) > atomic_long_read(&returned);

	our_kprobe_counters(&one.kp, &counters);
	say("%s: %ld calls, %ld returns, %lu abandoned, %lu nested, %lu no room", one_name, atomic_long_read(&entered),
	    atomic_long_read(&returned), counters.abandoned, counters.missed_nested, counters.missed_pool);
	return our_unregister_kretprobe(&one) ?: counters.missed_pool || !is_pending ? -EIO : 0;
}

/* Says how a function's entry would be probed. */
int explain(char *name)
{
	char sentence[400];
	unsigned long at = symbol(name);

	if (!at)
		return -ENOENT;
	our_kprobes_explain(at + arch_entry_skip(at), sentence, sizeof(sentence));
	say("%s: %s", name, sentence);
	return 0;
}
