// SPDX-License-Identifier: MIT OR Apache-2.0
/* A probe on every instruction of a function. */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "host.h"

#define MOST 24000

static struct our_kprobe *walked;
static int count;
static bool has_posts;
static atomic_long_t hits, posts, wrong;

static int hit(struct our_kprobe *probe, struct pt_regs *regs)
{
	atomic_long_inc(&hits);
	if ((void *)instruction_pointer(regs) != probe->addr)
		atomic_long_inc(&wrong);
	return 0;
}

static void post(struct our_kprobe *probe, struct pt_regs *regs, unsigned long flags) { atomic_long_inc(&posts); }

static int walk_function(const char *name, our_kprobe_post_handler_t post_handler)
{
	unsigned long start = symbol(name), size, offset;
	int (*length)(unsigned long, unsigned long *, unsigned long *) = (void *)symbol("kallsyms_lookup_size_offset");
	int inside = 0, forbidden = 0, refused = 0, first = count;
	char reason[KPROBE_REASON_LEN] = "";

	if (!walked)
		walked = vzalloc(sizeof(*walked) * MOST);
	if (!walked)
		return -ENOMEM;
	/* Which functions there are depends on the processor and the version. */
	if (!start || !length(start, &size, &offset)) {
		say("walk: there is no %s", name);
		return 0;
	}
	for (offset = 0; offset < size && count < MOST; offset += ARCH_INSN_ALIGN) {
		struct our_kprobe *probe = &walked[count];
		int error;

		memset(probe, 0, sizeof(*probe));
		probe->addr = (void *)start + offset;
		probe->pre_handler = hit;
		probe->post_handler = post_handler;
		error = our_register_kprobe(probe);
		if (!error)
			count++;
		else if (error == -EILSEQ)
			inside++;
		else if (error == -EINVAL)
			forbidden++;
		else {
			refused++;
			strscpy(reason, probe->reason, sizeof(reason));
		}
	}
	say("walk %-32s %5lu bytes, %4d probes, %4d inside instructions, %3d Linux's, %2d refused %s", name, size, count - first, inside,
	    forbidden, refused, reason);
	return count > first && count < MOST ? 0 : -EIO;
}

int walk(char *name)
{
	has_posts = false;
	return walk_function(name, NULL);
}

int walk_posts(char *name)
{
	has_posts = true;
	return walk_function(name, post);
}

/* What the probes have counted. */
static long counted_faults(void)
{
	struct our_probe_counters counters = { 0 };
	long faults = 0;
	int i;

	for (i = 0; i < count; i++)
		if (!our_kprobe_counters(&walked[i], &counters))
			faults += counters.faults;
	return faults;
}

/*
 * Takes the probes away; an error if none was hit, any at a wrong place, or if an instruction ran without its
 * post handler: each hit has one, unless the instruction faulted.
 */
int walk_off(char *argument)
{
	struct our_kprobe **all = kvmalloc_array(count + 1, sizeof(*all), GFP_KERNEL);
	long hit, posted, faults;
	int i, error;

	if (!all)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		all[i] = &walked[i];
	/* No new hits; those that have begun end: they are pinned until their post handlers have run. */
	error = our_kprobes_write_enabled("0");
	synchronize_rcu();
	hit = atomic_long_read(&hits);
	posted = atomic_long_read(&posts);
	faults = counted_faults();
	error = error ?: our_kprobes_write_enabled("1");
	error = error ?: our_unregister_kprobes(all, count);
	kvfree(all);
	say("walk: %d probes, %ld hits, %ld of post handlers, %ld faults, %ld wrong", count, hit, posted, faults, atomic_long_read(&wrong));
	if (!hit || atomic_long_read(&wrong) || (has_posts && hit - posted != faults))
		error = error ?: -EIO;
	count = 0;
	atomic_long_set(&hits, 0);
	atomic_long_set(&posts, 0);
	atomic_long_set(&wrong, 0);
	return error;
}

void walk_free(void) { vfree(walked); }

/* Copies that fault answer as they do without probes: how much is left, and the rest is cleared. */
int copies(char *argument)
{
	static const size_t lengths[] = { 1, 7, 8, 63, 64, 65, 4000 };
	u8 *buffer = kmalloc(4096, GFP_KERNEL);
	void __user *nowhere = (void __user *)64;
	int i, error = buffer ? 0 : -ENOMEM;

	for (i = 0; !error && i < ARRAY_SIZE(lengths); i++) {
		size_t len = lengths[i];

		memset(buffer, 0x55, 4096);
		if (copy_from_user(buffer, nowhere, len) != len || buffer[0] || buffer[len - 1] || buffer[len] != 0x55 ||
		    copy_to_user(nowhere, buffer, len) != len || clear_user(nowhere, len) != len ||
		    strncpy_from_user(buffer, nowhere, len) != -EFAULT || strnlen_user(nowhere, len)) {
			say("copies: %zu bytes to or from nowhere did something else than fail", len);
			error = -EIO;
		}
	}
	kfree(buffer);
	return error;
}

/* Whether faults have come to the library since the last question. */
int faulted(char *argument)
{
	static long before;
	long now = atomic_long_read(&host_counts.faults);
	bool are_new = now != before;

	say("%ld faults in slots and detours", now - before);
	before = now;
	return are_new ? 0 : -EIO;
}
