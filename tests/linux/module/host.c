// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * `struct probe_host` for Linux 6.1, what is the same on every architecture. Linux exports little of
 * it: the symbols are looked up, and the first by a kprobe of Linux's own, which answers an address
 * for a name.
 */
#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/kallsyms.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleloader.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "host.h"

struct kernel kernel;
struct host_counts host_counts;

unsigned long symbol(const char *name) { return kernel.kallsyms_lookup_name(name); }

#define WANTED(name) { #name, offsetof(struct kernel, name) }

static int find_symbols_of_kernel(void)
{
	static const struct {
		const char *name;
		size_t where;
	} wanted[] = {
		WANTED(kallsyms_lookup), WANTED(kallsyms_on_each_match_symbol), WANTED(kernel_text_address),
		WANTED(within_kprobe_blacklist), WANTED(get_kprobe), WANTED(ftrace_location), WANTED(ftrace_text_reserved),
		WANTED(jump_label_text_reserved), WANTED(jump_label_lock), WANTED(jump_label_unlock),
		WANTED(static_call_text_reserved), WANTED(task_call_func),
		WANTED(__vmalloc_node_range), WANTED(set_memory_ro), WANTED(set_memory_x), WANTED(text_mutex),
	};
	struct kprobe lookup = { .symbol_name = "kallsyms_lookup_name" };
	int error = register_kprobe(&lookup), i;

	if (error)
		return error;
	kernel.kallsyms_lookup_name = (void *)lookup.addr;
	unregister_kprobe(&lookup);
	for (i = 0; i < ARRAY_SIZE(wanted); i++)
		*(unsigned long *)((void *)&kernel + wanted[i].where) = symbol(wanted[i].name);
	if (!kernel.kallsyms_lookup || !kernel.kernel_text_address || !kernel.within_kprobe_blacklist || !kernel.get_kprobe ||
	    !kernel.task_call_func || !kernel.__vmalloc_node_range || !kernel.set_memory_ro || !kernel.set_memory_x ||
	    !kernel.text_mutex || !kernel.jump_label_text_reserved || !kernel.jump_label_lock || !kernel.jump_label_unlock)
		return -ENOENT;
	return 0;
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* Calls nothing outside of this module: what the hit path calls must not be probed. */
size_t host_read(unsigned long at, void *out, size_t len)
{
	size_t done = 0;

	if (at < TASK_SIZE_MAX + PAGE_SIZE)
		return 0;
	for (; done + sizeof(long) <= len; done += sizeof(long))
		__get_kernel_nofault(out + done, (void *)at + done, unsigned long, fault);
	for (; done < len; done++)
		__get_kernel_nofault(out + done, (void *)at + done, u8, fault);
fault:
	return done;
}

size_t host_write(unsigned long at, const void *bytes, size_t len)
{
	size_t done = 0;

	if (at < TASK_SIZE_MAX + PAGE_SIZE)
		return 0;
	for (; done + sizeof(long) <= len; done += sizeof(long))
		__put_kernel_nofault((void *)at + done, bytes + done, unsigned long, fault);
	for (; done < len; done++)
		__put_kernel_nofault((void *)at + done, bytes + done, u8, fault);
fault:
	return done;
}

/* Live text with Linux's own probes taken out of it: what they have replaced is what stands there. */
static size_t read_text(unsigned long at, void *out, size_t len)
{
	size_t got = host_read(at, out, len);
	unsigned long place;
	u8 original[ARCH_REPLACED_MAX], first;

	preempt_disable_notrace();
	for (place = at - ARCH_REPLACED_MAX + 1; place < at + got; place++) {
		struct kprobe *theirs;
		size_t replaced, i;

		/* Most places have no probe, and Linux's table is slow. */
		if (host_read(place, &first, 1) != 1 || !arch_begins_probe(first))
			continue;
		theirs = kernel.get_kprobe((void *)place);
		if (!theirs || theirs->flags & KPROBE_FLAG_FTRACE)
			continue;
		replaced = arch_original(theirs, original);
		for (i = 0; i < replaced; i++)
			if (place + i >= at && place + i < at + got)
				((u8 *)out)[place + i - at] = original[i];
	}
	preempt_enable_notrace();
	return got;
}

static int write_text(unsigned long at, const void *bytes, size_t len)
{
	if (!kernel.kernel_text_address(at) && !(at >= arch_near_low && at < arch_exec_high))
		return -EFAULT;
	mutex_lock(kernel.text_mutex);
	while (len) {
		size_t now = min_t(size_t, len, PAGE_SIZE - offset_in_page(at));

		arch_write_text(at, bytes, now);
		at += now;
		bytes += now;
		len -= now;
	}
	mutex_unlock(kernel.text_mutex);
	return 0;
}

/* The pieces of executable memory, so that all can be given back at the end. */
struct piece {
	struct list_head in_pieces;
	void *at;
};
static LIST_HEAD(pieces);
static DEFINE_SPINLOCK(pieces_lock);

static void *alloc_between(size_t len, unsigned long low, unsigned long high)
{
	int pages = PAGE_ALIGN(len) >> PAGE_SHIFT;
	void *at;

	low = round_up(low, len);
	if (low >= high || high - low < len)
		return NULL;
	at = kernel.__vmalloc_node_range(len, len, low, high, GFP_KERNEL | __GFP_NOWARN, PAGE_KERNEL,
					 VM_FLUSH_RESET_PERMS, NUMA_NO_NODE, __builtin_return_address(0));
	if (!at)
		return NULL;
	/* What nobody has written is never executed. */
	memset(at, 0, len);
	if (!kernel.set_memory_ro((unsigned long)at, pages) && !kernel.set_memory_x((unsigned long)at, pages))
		return at;
	vfree(at);
	return NULL;
}

static unsigned long alloc_exec(probe_size len, unsigned long near, probe_size reach)
{
	unsigned long low = near > reach ? near - reach : 0, high = near && near + reach > near ? near + reach : ULONG_MAX;
	struct piece *piece = kmalloc(sizeof(*piece), GFP_KERNEL);
	void *at;

	if (!piece)
		return 0;
	/* The nearest to the kernel's text first: what is executed there reaches most of the kernel's data. */
	at = alloc_between(len, max(low, arch_exec_low), min(high, arch_exec_high));
	if (!at && near)
		at = alloc_between(len, max(low, arch_near_low), min(high, arch_exec_low));
	if (!at) {
		kfree(piece);
		return 0;
	}
	piece->at = at;
	spin_lock(&pieces_lock);
	list_add(&piece->in_pieces, &pieces);
	spin_unlock(&pieces_lock);
	atomic_long_inc(&host_counts.pieces);
	return (unsigned long)at;
}

static void free_exec(unsigned long at, probe_size len)
{
	struct piece *piece, *found = NULL;

	spin_lock(&pieces_lock);
	list_for_each_entry(piece, &pieces, in_pieces)
		if (piece->at == (void *)at)
			found = piece;
	if (found)
		list_del(&found->in_pieces);
	spin_unlock(&pieces_lock);
	if (WARN_ON(!found))
		return;
	kfree(found);
	vfree((void *)at);
	atomic_long_dec(&host_counts.pieces);
}

/* Powers of two are aligned to themselves. */
static void *alloc(probe_size len, probe_size align)
{
	return kvmalloc(align > sizeof(long) ? roundup_pow_of_two(max(len, align)) : len, GFP_KERNEL);
}

static void free_memory(void *at, probe_size len, probe_size align) { kvfree(at); }

/* ---- CPUs and tasks ------------------------------------------------------------------------------ */

static void *contexts[NR_CPUS];

static void *context(void) { return contexts[raw_smp_processor_id()]; }
static void *context_of(probe_size cpu) { return cpu < nr_cpu_ids ? contexts[cpu] : NULL; }
static void pin(void) { preempt_disable_notrace(); }
static void unpin(void) { preempt_enable_notrace(); }

/*
 * What the library keeps for each task, found by the task's address: Linux has no room for it. A task
 * that finds no room has none.
 */
#define BUCKETS 2048
#define WAYS 4

struct entry {
	struct task_struct *owner;
	u8 state[PROBE_TASK_SIZE] __aligned(16);
};
static struct entry (*tasks)[WAYS];

static struct entry *bucket(struct task_struct *task) { return tasks[hash_ptr(task, ilog2(BUCKETS))]; }

static void *state_of(struct task_struct *task)
{
	struct entry *at = bucket(task);
	int i;

	for (i = 0; i < WAYS; i++)
		if (READ_ONCE(at[i].owner) == task)
			return at[i].state;
	return NULL;
}

/* The running task's, made at its first hit. Other stacks than its own (interrupts') have none. */
static void *task(void)
{
	struct task_struct *me = current;
	unsigned long low = (unsigned long)task_stack_page(me), here = (unsigned long)__builtin_frame_address(0);
	struct entry *at = bucket(me);
	void *found;
	int i;

	if (here - low >= THREAD_SIZE)
		return NULL;
	found = state_of(me);
	if (likely(found))
		return found;
	for (i = 0; i < WAYS; i++)
		/* Nobody finds it before it has its owner. */
		if (!at[i].owner && !cmpxchg(&at[i].owner, NULL, (void *)-1L)) {
			our_probe_task_init(at[i].state);
			our_probe_task_stack(at[i].state, low, low + THREAD_SIZE);
			smp_store_release(&at[i].owner, me);
			return at[i].state;
		}
	return NULL;
}

/* Tracepoint sched:sched_process_free: the task has run for the last time. */
static void task_is_freed(void *cookie, struct task_struct *task)
{
	struct entry *at = bucket(task);
	int i;

	for (i = 0; i < WAYS; i++)
		if (READ_ONCE(at[i].owner) == task) {
			our_probe_task_exit(at[i].state);
			smp_store_release(&at[i].owner, NULL);
		}
}

struct waiting {
	our_probe_waiting_t call;
	void *cookie;
};

/* Runs with the task's locks: it does not wake up meanwhile. */
static int show_waiting(struct task_struct *task, void *cookie)
{
	struct waiting *waiting = cookie;
	void *state = state_of(task);
	unsigned long low = (unsigned long)task_stack_page(task);

	/* A task that was preempted is still on its queue. */
	if (state && !task->on_rq && !task->on_cpu && READ_ONCE(task->__state) != TASK_RUNNING)
		waiting->call(waiting->cookie, state, arch_stack_pointer(task), low + THREAD_SIZE, 0, 0);
	return 0;
}

static void for_each_waiting(our_probe_waiting_t call, void *cookie)
{
	struct waiting waiting = { call, cookie };
	struct task_struct *process, *thread;

	rcu_read_lock();
	for_each_process_thread(process, thread)
		if (thread != current)
			kernel.task_call_func(thread, show_waiting, &waiting);
	rcu_read_unlock();
}

static void relax(void)
{
	if (preemptible())
		usleep_range(50, 200);
	else
		cpu_relax();
}

static void log_line(const char *text) { pr_warn("probes: %s\n", text); }
static void stop(void) { panic("probes: stop"); }

/* ---- symbols ------------------------------------------------------------------------------------- */

/* A function starts behind the function tracer's bytes: those change whenever somebody traces it. */
static void tell(unsigned long at, our_probe_found_t found, void *cookie)
{
	char name[KSYM_NAME_LEN], *module = NULL;
	unsigned long size, offset, skip;
	struct our_probe_symbol found_here;

	if (!kernel.kallsyms_lookup(at, &size, &offset, &module, name))
		return;
	skip = arch_entry_skip(at - offset);
	if (offset && offset < skip)
		return;
	found_here = (struct our_probe_symbol) {
		.name = name, .start = at - offset + skip, .len_bytes = size - skip, .module = module,
	};
	found(cookie, &found_here);
}

static void symbol_at(unsigned long at, our_probe_found_t found, void *cookie) { tell(at, found, cookie); }

struct search {
	our_probe_found_t found;
	void *cookie;
	int count;
};

static int found_match(void *cookie, unsigned long at)
{
	struct search *search = cookie;

	search->count++;
	tell(at, search->found, search->cookie);
	return 0;
}

static void find_symbols(const char *name, our_probe_found_t found, void *cookie)
{
	struct search search = { found, cookie };
	unsigned long at;

	if (kernel.kallsyms_on_each_match_symbol)
		kernel.kallsyms_on_each_match_symbol(found_match, name, &search);
	/* Modules' symbols, and kernels without that function. */
	at = search.count ? 0 : symbol(name);
	if (at)
		found_match(&search, at);
}

/* Whether Linux itself patches this byte. */
static bool is_patched_by_linux(unsigned long at)
{
	void *byte = (void *)at;
	bool is_theirs = false;
	unsigned long place;

	preempt_disable_notrace();
	for (place = at - ARCH_REPLACED_MAX + 1; place <= at && !is_theirs; place++) {
		struct kprobe *theirs = kernel.get_kprobe((void *)place);
		u8 original[ARCH_REPLACED_MAX];

		is_theirs = theirs && !(theirs->flags & KPROBE_FLAG_FTRACE) && place + arch_original(theirs, original) > at;
	}
	preempt_enable_notrace();
	/* Looking for jump labels, Linux decodes them, and stops where one is half patched. */
	kernel.jump_label_lock();
	is_theirs = is_theirs || kernel.jump_label_text_reserved(byte, byte);
	kernel.jump_label_unlock();
	return is_theirs || (kernel.ftrace_text_reserved && kernel.ftrace_text_reserved(byte, byte)) ||
	       (kernel.static_call_text_reserved && kernel.static_call_text_reserved(byte, byte));
}

static int probeable(unsigned long at)
{
	if (!kernel.kernel_text_address(at))
		return PROBEABLE_NOT_TEXT;
	if (is_target(at))
		return PROBEABLE_YES;
	if (within_module(at, THIS_MODULE) || kernel.within_kprobe_blacklist(at))
		return PROBEABLE_BLACKLISTED;
	return is_patched_by_linux(at) ? PROBEABLE_PATCHED : PROBEABLE_YES;
}

/* ---- start and stop ------------------------------------------------------------------------------ */

static const struct our_probe_host host = {
	.read_text = read_text, .write_text = write_text, .read_memory = host_read, .write_memory = arch_write_memory,
	.sync_cores = arch_sync_cores, .alloc_exec = alloc_exec, .free_exec = free_exec, .context = context,
	.context_of = context_of, .task = task, .enter_slot = arch_enter_slot, .leave_slot = arch_leave_slot, .pin = pin,
	.unpin = unpin, .find_symbols = find_symbols, .symbol_at = symbol_at, .probeable = probeable, .relax = relax,
	.log = log_line, .stop = stop, .alloc = alloc, .free = free_memory, .for_each_waiting = for_each_waiting,
};

static struct tracepoint *freed;

static void see_tracepoint(struct tracepoint *tracepoint, void *cookie)
{
	if (!strcmp(tracepoint->name, "sched_process_free"))
		freed = tracepoint;
}

static int module_changes(struct notifier_block *block, unsigned long state, void *data)
{
	struct module *module = data;
	unsigned long start = (unsigned long)module->core_layout.base;

	if (state == MODULE_STATE_GOING && module != THIS_MODULE)
		our_probe_text_going(start, start + module->core_layout.text_size);
	return NOTIFY_DONE;
}

static struct notifier_block modules = { .notifier_call = module_changes };

static void free_all(void)
{
	int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		kvfree(contexts[cpu]);
	vfree(tasks);
}

int host_start(void)
{
	int error = find_symbols_of_kernel(), cpu;

	if (!error)
		error = arch_start();
	if (error)
		return error;
	tasks = vzalloc(sizeof(*tasks) * BUCKETS);
	for (cpu = 0; tasks && cpu < nr_cpu_ids; cpu++) {
		contexts[cpu] = alloc(our_probe_context_size(), 64);
		if (!contexts[cpu])
			break;
		our_probe_context_init(contexts[cpu]);
	}
	if (!tasks || cpu < nr_cpu_ids || our_probe_task_size() > PROBE_TASK_SIZE) {
		free_all();
		return -ENOMEM;
	}
	error = our_probe_kernel_start(&host);
	if (error) {
		free_all();
		return error;
	}
	for_each_kernel_tracepoint(see_tracepoint, NULL);
	if (!freed || tracepoint_probe_register(freed, task_is_freed, NULL)) {
		free_all();
		return -ENOENT;
	}
	register_module_notifier(&modules);
	arch_hooks();
	return 0;
}

int host_stop(void)
{
	struct our_probe_remains remains = { 0 };
	static struct our_probe_remains before;
	int error = our_probe_stop(&remains);

	if (error) {
		say("probe_stop: %d", error);
		return error;
	}
	if (remains.calls || remains.stubs || remains.probes) {
		if (memcmp(&remains, &before, sizeof(remains)))
			say("remain: %lu calls (one to %pS), %lu stubs, %lu probes, %lu slots, %lu detours", remains.calls,
			    (void *)remains.call, remains.stubs, remains.probes, remains.slots, remains.detours);
		before = remains;
		return -EBUSY;
	}
	arch_unhook();
	unregister_module_notifier(&modules);
	tracepoint_probe_unregister(freed, task_is_freed, NULL);
	tracepoint_synchronize_unregister();
	/* Whoever was preempted in the library, in a slot or in a detour, leaves: nobody sleeps there. */
	synchronize_rcu_tasks();
	while (!list_empty(&pieces))
		free_exec((unsigned long)list_first_entry(&pieces, struct piece, in_pieces)->at, 0);
	free_all();
	return 0;
}
