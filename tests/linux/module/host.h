/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the parts of the module know of each other. own.h is the library's header, with `our_` before
 * every name.
 */
#ifndef PROBES_HOST_H
#define PROBES_HOST_H

#include <linux/kprobes.h>
#include <linux/ptrace.h>
#include "own.h"

/* How far apart instructions can begin, and the most that a probe of Linux's own replaces. */
#ifdef CONFIG_X86
#define ARCH_INSN_ALIGN 1
#define ARCH_REPLACED_MAX 5
#else
#define ARCH_INSN_ALIGN 4
#define ARCH_REPLACED_MAX 4
#endif

#define say(format, ...) pr_info("probes: " format "\n", ##__VA_ARGS__)

/* The unexported symbols that the host needs. A name that Linux does not have is null. */
struct kernel {
	unsigned long (*kallsyms_lookup_name)(const char *name);
	const char *(*kallsyms_lookup)(unsigned long at, unsigned long *size, unsigned long *offset, char **module, char *name);
	int (*kallsyms_on_each_match_symbol)(int (*found)(void *cookie, unsigned long at), const char *name, void *cookie);
	int (*kernel_text_address)(unsigned long at);
	bool (*within_kprobe_blacklist)(unsigned long at);
	struct kprobe *(*get_kprobe)(void *at);
	unsigned long (*ftrace_location)(unsigned long at);
	int (*ftrace_text_reserved)(const void *first, const void *last);
	int (*jump_label_text_reserved)(void *first, void *last);
	void (*jump_label_lock)(void);
	void (*jump_label_unlock)(void);
	int (*static_call_text_reserved)(void *first, void *last);
	int (*task_call_func)(struct task_struct *task, int (*call)(struct task_struct *task, void *cookie), void *cookie);
	void *(*__vmalloc_node_range)(unsigned long size, unsigned long align, unsigned long start, unsigned long end, gfp_t gfp,
				      pgprot_t prot, unsigned long flags, int node, const void *caller);
	int (*set_memory_ro)(unsigned long at, int pages);
	int (*set_memory_x)(unsigned long at, int pages);
	struct mutex *text_mutex;
};
extern struct kernel kernel;

/* The address of a symbol, 0 if there is none. */
unsigned long symbol(const char *name);

/* How often the host has been asked for what. */
struct host_counts {
	atomic_long_t faults, fixed, pieces, staged;
};
extern struct host_counts host_counts;

/* ---- host.c: what every architecture has --------------------------------------------------------- */

int host_start(void);

/* Waits until nothing leads into the library any more; -EBUSY if calls do not return. */
int host_stop(void);
size_t host_read(unsigned long at, void *out, size_t len);
size_t host_write(unsigned long at, const void *bytes, size_t len);

/* ---- x86.c --------------------------------------------------------------------------------------- */

/*
 * Where executable memory can be: from `arch_exec_low` on; where it has to be near something, from
 * `arch_near_low` on.
 */
extern unsigned long arch_near_low, arch_exec_low, arch_exec_high;
int arch_start(void);
void arch_hooks(void);
void arch_unhook(void);

/* Stores text that other CPUs may be executing; `text_mutex` is held. */
void arch_write_text(unsigned long at, const void *bytes, size_t len);
void arch_sync_cores(void);

/* Whether a probe of Linux's own can begin with this byte. */
bool arch_begins_probe(u8 first);

/* Puts into `bytes` what Linux's own kprobe at `p->addr` has replaced; answers how much. */
size_t arch_original(struct kprobe *p, u8 *bytes);

/* How many bytes at a function's start are the function tracer's. */
unsigned long arch_entry_skip(unsigned long start);

/* The stack pointer of a task that does not run. */
unsigned long arch_stack_pointer(struct task_struct *task);
size_t arch_write_memory(unsigned long at, const void *bytes, size_t len);
probe_u64 arch_enter_slot(struct pt_regs *regs);
void arch_leave_slot(struct pt_regs *regs, probe_u64 kept);

/*
 * ---- the words: each answers 0, or a negative errno after it has said why
 * -------------------------------------------
 */

/* pairs.c */
int pairs_on(char *argument);
int pairs_count(char *argument);
int pairs_report(char *argument);
int pairs_off(char *argument);
int churn(char *times);

/* walk.c */
int walk(char *name);
int walk_posts(char *name);
int walk_off(char *argument);
void walk_free(void);
int copies(char *argument);
int faulted(char *argument);

/* examples.c */
int examples_on(char *argument);
int examples_report(char *argument);
int examples_off(char *argument);
int example_forked(char *pid);
int follow(char *name);
int follow_off(char *argument);
int explain(char *name);

/* cost.c */
int cost(char *argument);
bool is_target(unsigned long at);

#endif
