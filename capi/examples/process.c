/*
 * Probes in this very process: a kprobe, a jprobe and a return probe on functions of libc.
 *
 * cargo build --release -p probe-c cc -Icapi/include capi/examples/process.c target/release/libprobe_c.a
 * -lpthread -ldl -lm -o process && ./process
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

/* What is promised must be so: this program is run as a test. */
#define CHECK(what)                                                                     \
	do {                                                                            \
		if (!(what)) {                                                          \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

static unsigned long before, after, place;

static int pre(struct kprobe *p, struct pt_regs *regs)
{
	before++;
	place = instruction_pointer(regs);
	/* A handler may neither register nor unregister (REG_18). */
	return unregister_kprobe(p) == -EBUSY ? 0 : 1;
}

static void post(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
	(void)p;
	(void)flags;
	after += instruction_pointer(regs) != place;
}

static int seen_letter;

static int on_toupper(int letter)
{
	seen_letter = letter;
	/* Its own copies are its own (JMP_3). */
	letter = 'x';
	jprobe_return();
}

struct call {
	unsigned long argument;
};

static int entered(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *call = ri->data;

	call->argument = regs_get_kernel_argument(regs, 0);
	/* Only negative numbers are followed. */
	return (long)(int)call->argument >= 0;
}

static int returned(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	struct call *call = ri->data;

	regs_set_return_value(regs, regs_return_value(regs) + 1000 + (call->argument == (unsigned long)-7));
	return 0;
}

static struct kprobe kp = { .symbol_name = "getppid", .pre_handler = pre, .post_handler = post };
static struct jprobe jp = { .kp.symbol_name = "toupper", .entry = (const void *)on_toupper };
static struct kretprobe rp = {
	.kp.symbol_name = "labs",
	.handler = returned,
	.entry_handler = entered,
	.data_size = sizeof(struct call),
	.maxactive = 20,
};

static void errors(void)
{
	struct kprobe bad = { .symbol_name = "no_such_function" };
	struct kprobe neither = { 0 };
	struct kprobe both = { .symbol_name = "getppid", .addr = (void *)1 };
	struct kprobe far_out = { .symbol_name = "getppid", .offset = 1 << 20 };
	struct kprobe fine = { .symbol_name = "getppid" };
	struct kprobe *batch[] = { &fine, &bad };
	struct kretprobe many = { .kp.symbol_name = "labs" };
	struct kretprobe start = { .kp.symbol_name = "_start" };
	struct kretprobe big = { .kp.symbol_name = "labs", .data_size = 4097 };

	CHECK(register_kprobe(&bad) == -ENOENT && !strcmp(bad.reason, "place.no_symbol"));
	CHECK(register_kprobe(&neither) == -EINVAL && !strcmp(neither.reason, "place.neither"));
	CHECK(register_kprobe(&both) == -EINVAL && !strcmp(both.reason, "place.both"));
	CHECK(register_kprobe(&far_out) == -EINVAL);
	CHECK(register_kretprobe(&big) == -E2BIG);
	CHECK(register_kprobe(NULL) == -EINVAL);
	/* All or nothing (REG_12). */
	CHECK(register_kprobes(batch, 2) == -ENOENT && fine.addr == NULL);
	/* Flags that do not exist, and more calls than can be followed (RET_3). */
	fine.flags = 1 << 20;
	CHECK(register_kprobe(&fine) == -EINVAL && !strcmp(fine.reason, "probe.unknown_flags"));
	many.maxactive = INT_MAX;
	CHECK(register_kretprobe(&many) == -EINVAL && !strcmp(many.kp.reason, "kretprobe.too_many"));
	many.maxactive = KRETPROBE_MAX_ACTIVE + 1;
	CHECK(register_kretprobe(&many) == -EINVAL);
	/* No call comes to where the program starts (REG_19). */
	CHECK(register_kretprobe(&start) == -EINVAL && !strcmp(start.kp.reason, "entry.start"));
	/* Nothing to remove: that is said (REG_14). */
	bad.addr = (void *)1;
	CHECK(unregister_kprobe(&bad) == -EINVAL && bad.addr == NULL);
	CHECK(enable_kprobe(&bad) == -EINVAL);
}

/* A place by address and offset is the same place each time (REG_15). */
static void again(void)
{
	char *entry;
	struct kprobe by_name = { .symbol_name = "getppid" };
	struct kprobe p = { .pre_handler = pre };
	int times;

	CHECK(register_kprobe(&by_name) == 0);
	entry = (char *)by_name.addr;
	CHECK(unregister_kprobe(&by_name) == 0 && by_name.addr == NULL);
	/* Behind ENDBR64, where there is one, the first instruction begins. */
	p.addr = entry - 1;
	p.offset = 1;
	for (times = 0; times < 3; times++) {
		CHECK(register_kprobe(&p) == 0 && p.addr == entry);
		CHECK(unregister_kprobe(&p) == 0 && p.addr == entry - 1 && p.offset == 1);
	}
	/* One that is refused keeps its place, too. */
	p.offset = 1 << 20;
	CHECK(register_kprobe(&p) < 0 && p.addr == entry - 1);
}

/* A copy of a registered structure is registered nowhere; what it was copied from stays registered. */
static void copies(void)
{
	struct probe_counters counters;
	struct kprobe *copy = malloc(sizeof(*copy));
	unsigned long seen = before;

	CHECK(copy && register_kprobe(&kp) == 0);
	*copy = kp;
	CHECK(unregister_kprobe(copy) == -EINVAL && copy->addr == NULL);
	CHECK(enable_kprobe(copy) == -EINVAL && kprobe_counters(copy, &counters) == -EINVAL);
	getppid();
	CHECK(before == seen + 1);
	/* It can be registered by itself. */
	*copy = kp;
	copy->addr = NULL;
	CHECK(register_kprobe(copy) == 0);
	getppid();
	CHECK(before == seen + 3);
	CHECK(unregister_kprobe(&kp) == 0 && unregister_kprobe(copy) == 0);
	CHECK(unregister_kprobe(&kp) == -EINVAL && unregister_kprobe(copy) == -EINVAL);
	free(copy);
	before = seen;
	after = 0;
}

static unsigned long early, hits_meanwhile;
static int is_over;

/* The place that is probed while another thread calls it. */
__attribute__((noipa)) int called_meanwhile(int a)
{
	return a + 1;
}

static int pre_meanwhile(struct kprobe *p, struct pt_regs *regs)
{
	__atomic_fetch_add(&hits_meanwhile, 1, __ATOMIC_RELAXED);
	early += p->addr != (void *)instruction_pointer(regs);
	return 0;
}

static void *calls(void *unused)
{
	while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE))
		CHECK(called_meanwhile(1) == 2);
	return unused;
}

/* The very first hit finds the address in its structure. */
static void first_hits(void)
{
	static struct kprobe probes[100], *all[100];
	pthread_t thread;

	for (int i = 0; i < 100; i++) {
		/* By name: an address would be there from the start. */
		probes[i].symbol_name = "called_meanwhile";
		probes[i].pre_handler = pre_meanwhile;
		all[i] = &probes[i];
	}
	CHECK(pthread_create(&thread, NULL, calls, NULL) == 0);
	while (__atomic_load_n(&hits_meanwhile, __ATOMIC_RELAXED) < 500)
		CHECK(register_kprobes(all, 100) == 0 && unregister_kprobes(all, 100) == 0);
	__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(early == 0);
}

/* All probes stop, and can be registered again. */
static void stops(void)
{
	struct probe_remains remains;
	unsigned long seen = before;

	CHECK(register_kprobe(&kp) == 0 && register_kretprobe(&rp) == 0);
	CHECK(probe_stop(&remains) == 0 && remains.calls == 0 && remains.probes == 2);
	getppid();
	CHECK(before == seen && labs(-7) == 7);
	CHECK(register_jprobe(&jp) == -ESHUTDOWN && !strcmp(jp.kp.reason, "probes.stopped"));
	CHECK(enable_kprobe(&kp) == -EINVAL);
	CHECK(unregister_kprobe(&kp) == 0 && unregister_kretprobe(&rp) == 0);
	CHECK(probe_stop(&remains) == 0 && remains.probes == 0 && probe_start_again() == 0);
	CHECK(register_kprobe(&kp) == 0 && (getppid(), before == seen + 1) && unregister_kprobe(&kp) == 0);
}

int main(void)
{
	int (*volatile upper)(int) = toupper;
	long (*volatile magnitude)(long) = labs;
	struct probe_counters counters;
	char list[4096], why[256];
	pid_t parent = getppid();

	errors();
	again();
	copies();

	CHECK(register_kprobe(&kp) == 0);
	printf("Planted kprobe at %p\n", kp.addr);
	CHECK(register_kprobe(&kp) == -EINVAL && !strcmp(kp.reason, "probe.is_registered"));
	CHECK(register_jprobe(&jp) == 0);
	CHECK(register_kretprobe(&rp) == 0);

	CHECK(getppid() == parent && getppid() == parent);
	CHECK(before == 2 && after == 2 && place == (unsigned long)kp.addr);
	CHECK(upper('q') == 'Q' && seen_letter == 'q');
	CHECK(magnitude(-7) == 1008 && magnitude(-8) == 1008 && magnitude(9) == 9);

	CHECK(kprobe_counters(&kp, &counters) == 0 && counters.hits == 2);
	CHECK(kprobe_counters(&rp.kp, &counters) == 0 && counters.hits == 2 && counters.vetoed == 1);
	CHECK(kprobes_list(list, sizeof(list), 1) == (long)strlen(list));
	printf("%s", list);
	CHECK(strstr(list, "  k  getppid+0x") && strstr(list, "  r  ") && strstr(list, "  j  "));
	CHECK(kprobes_list(list, 8, 1) > 8 && strlen(list) == 7);
	CHECK(probe_self_test(why, sizeof(why)) == 0 && !*why);
	CHECK(probe_self_test_at("labs", NULL, why, sizeof(why)) == -EINVAL);
	/* By jumps, where there can be some. */
	CHECK(probe_optimise() >= 0 && getppid() == parent && before == 3);
	CHECK(probe_unoptimise() == 0 && probe_optimise_new(1) == 0 && probe_optimise_new(0) == 0);
	before = after = 2;
	CHECK(kprobes_explain((unsigned long)kp.addr, why, sizeof(why)) > 0 && strstr(why, " jump"));
	printf("%s\n", why);

	/* Enabling and disabling, one and all. */
	CHECK(disable_kprobe(&kp) == 0 && getppid() == parent && before == 2);
	CHECK(enable_kprobe(&kp) == 0 && getppid() == parent && before == 3);
	CHECK(kprobes_enabled() == 1 && kprobes_write_enabled("0\n") == 0 && kprobes_enabled() == 0);
	CHECK(getppid() == parent && before == 3);
	CHECK(kprobes_write_enabled("maybe") == -EINVAL && kprobes_write_enabled("1\n") == 0);

	CHECK(unregister_kretprobe(&rp) == 0 && unregister_jprobe(&jp) == 0);
	CHECK(magnitude(-7) == 7);
	CHECK(unregister_kprobe(&kp) == 0 && kp.addr == NULL);
	CHECK(getppid() == parent && before == 3);
	/* The same structure once more (REG_15). */
	CHECK(register_kprobe(&kp) == 0 && getppid() == parent && before == 4);
	CHECK(unregister_kprobe(&kp) == 0 && unregister_kprobe(&kp) == -EINVAL);
	first_hits();
	stops();
	printf("all is as promised\n");
	return 0;
}
