/*
 * The smallest kernel in C that hosts probes: one CPU, one task, a serial line. It probes two of its own
 * functions, prints what it has seen and ends QEMU. tests/kernel.rs builds and boots it.
 *
 * What a kernel writes is `struct probe_host` and the two calls in the trap handlers.
 */
#include "probe.h"

/* A kernel's own; probe.h needs no header. */
typedef probe_size size_t;
typedef probe_u32 uint32_t;
#define NULL ((void *)0)

#define ALIAS 0x40000000ul
#define MEMORY_START 0x200000ul
#define MEMORY_END 0x2000000ul
#define EXEC_START 0x800000ul
#define PAGE 4096ul
#define EXEC_PAGES 512
#define HEAP_START 0xa00000ul

_Static_assert(sizeof(struct pt_regs) == 168, "the frame is what the trap entries push");

/* ---- the machine --------------------------------------------------------------------------------------- */

static void outb(unsigned short port, unsigned char value)
{
	__asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static void print(const char *text)
{
	for (; *text; text++)
		outb(0x3f8, *text);
}

static void print_number(unsigned long value)
{
	char text[24], *at = text + sizeof(text);

	*--at = 0;
	do {
		*--at = '0' + value % 10;
		value /= 10;
	} while (value);
	print(at);
}

/* QEMU's exit status is twice the value plus one. */
static void finish(unsigned char value)
{
	outb(0xf4, value);
	for (;;)
		__asm__ volatile("hlt");
}

static void fail(const char *why)
{
	print("FAIL: ");
	print(why);
	print("\n");
	finish(1);
}

/* ---- what the probes are given ------------------------------------------------------------------------- */

/* Everything in this range is mapped, so a check of the range is enough not to fault. */
static size_t mapped(unsigned long at, size_t len)
{
	if (at < MEMORY_START || at >= MEMORY_END)
		return 0;
	return len < MEMORY_END - at ? len : MEMORY_END - at;
}

static size_t read_memory(unsigned long at, void *out, size_t len)
{
	len = mapped(at, len);
	__builtin_memcpy(out, (const void *)at, len);
	return len;
}

static size_t write_memory(unsigned long at, const void *bytes, size_t len)
{
	len = mapped(at, len);
	__builtin_memcpy((void *)at, bytes, len);
	return len;
}

/* One byte of text, or one aligned word, is one store; what is longer nobody executes yet. */
static int write_text(unsigned long at, const void *bytes, size_t len)
{
	if (mapped(at, len) != len)
		return -14;
	if (len == 4 && at % 4 == 0) {
		uint32_t word;

		__builtin_memcpy(&word, bytes, 4);
		*(volatile uint32_t *)(at + ALIAS) = word;
	} else {
		for (size_t i = 0; i < len; i++)
			((volatile unsigned char *)(at + ALIAS))[i] = ((const unsigned char *)bytes)[i];
	}
	return 0;
}

/* The one CPU needs a serialising instruction only. */
static void sync_cores(void)
{
	unsigned int leaf = 0;

	__asm__ volatile("cpuid" : "+a"(leaf) : : "ebx", "ecx", "edx", "memory");
}

static unsigned char exec_used[EXEC_PAGES];

static unsigned long alloc_exec(size_t len, unsigned long near, size_t reach)
{
	size_t pages = len / PAGE ? len / PAGE : 1, first, i;

	/* All of this kernel is within reach of all of it. */
	(void)near;
	(void)reach;
	for (first = 0; first + pages <= EXEC_PAGES; first += pages) {
		for (i = 0; i < pages && !exec_used[first + i]; i++)
			;
		if (i < pages)
			continue;
		__builtin_memset(exec_used + first, 1, pages);
		return EXEC_START + first * PAGE;
	}
	return 0;
}

static void free_exec(unsigned long at, size_t len)
{
	__builtin_memset(exec_used + (at - EXEC_START) / PAGE, 0, len / PAGE ? len / PAGE : 1);
}

static _Alignas(64) unsigned char context_memory[PROBE_CONTEXT_SIZE];
static _Alignas(16) unsigned char task_memory[2][PROBE_TASK_SIZE];
static _Alignas(16) unsigned char second_stack[16384];
static unsigned int running;
static unsigned long stack_pointer[2];

static void *context(void)
{
	return context_memory;
}

static void *context_of(size_t cpu)
{
	return cpu == 0 ? context_memory : NULL;
}

static void *task(void)
{
	return task_memory[running];
}

/* Saves what calls preserve on this stack, and goes on where the other task has done that. */
void switch_stacks(unsigned long *from, unsigned long to);
__asm__(".pushsection .text\n"
	"switch_stacks:\n"
	"	push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov %rsi, %rsp\n"
	"	pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
	"	ret\n"
	".popsection");

static void yield(void)
{
	unsigned int from = running;

	running = !from;
	switch_stacks(&stack_pointer[from], stack_pointer[running]);
}

/* The second task only ever waits by a call of its own; the first one is running. */
static void for_each_waiting(probe_waiting_t waiting, void *cookie)
{
	unsigned long end = (unsigned long)second_stack + sizeof(second_stack);

	if (stack_pointer[1])
		waiting(cookie, task_memory[1], stack_pointer[1], end, 0, 0);
}

static unsigned long patched_byte;

extern const char probed_add[], probed_add_end[], probed_twice[], probed_twice_end[];

static const struct {
	const char *name, *start, *end;
} symbols[] = {
	{ "add", probed_add, probed_add_end },
	{ "twice", probed_twice, probed_twice_end },
};

static void tell(size_t i, probe_found_t found, void *cookie)
{
	struct probe_symbol symbol = {
		.name = symbols[i].name,
		.start = (unsigned long)symbols[i].start,
		.len_bytes = symbols[i].end - symbols[i].start,
	};

	found(cookie, &symbol);
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static void find_symbols(const char *name, probe_found_t found, void *cookie)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
		if (same(symbols[i].name, name))
			tell(i, found, cookie);
}

static void symbol_at(unsigned long at, probe_found_t found, void *cookie)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
		if (at - (unsigned long)symbols[i].start < (size_t)(symbols[i].end - symbols[i].start))
			tell(i, found, cookie);
}

/* Only the two functions may be probed: everything else here is what the probes themselves run. */
static int probeable(unsigned long at)
{
	if (at == patched_byte)
		return PROBEABLE_PATCHED;
	if (at - (unsigned long)probed_add < (size_t)(probed_twice_end - probed_add))
		return PROBEABLE_YES;
	return at >= MEMORY_START && at < 0x400000 ? PROBEABLE_BLACKLISTED : PROBEABLE_NOT_TEXT;
}

static void stop(void)
{
	fail("stopped");
}

/* Memory in sizes of powers of two; what is given back is kept for the next of its size. */
static struct block {
	struct block *next;
} *blocks[32];
static unsigned long heap = HEAP_START;

static unsigned int size_class(size_t len, size_t align)
{
	unsigned int class = 4;

	while ((1ul << class) < len || (1ul << class) < align)
		class++;
	return class;
}

static void *alloc(size_t len, size_t align)
{
	unsigned int class = size_class(len, align);
	unsigned long size = 1ul << class, at;
	struct block *block = blocks[class];

	if (block) {
		blocks[class] = block->next;
		return block;
	}
	at = (heap + size - 1) & -size;
	if (at + size > MEMORY_END)
		return NULL;
	heap = at + size;
	return (void *)at;
}

static void free(void *at, size_t len, size_t align)
{
	struct block *block = at;
	unsigned int class = size_class(len, align);

	block->next = blocks[class];
	blocks[class] = block;
}

static const struct probe_host host = {
	.read_text = read_memory,
	.write_text = write_text,
	.read_memory = read_memory,
	.write_memory = write_memory,
	.sync_cores = sync_cores,
	.alloc_exec = alloc_exec,
	.free_exec = free_exec,
	.context = context,
	.context_of = context_of,
	.task = task,
	.find_symbols = find_symbols,
	.symbol_at = symbol_at,
	.probeable = probeable,
	.log = print,
	.stop = stop,
	.alloc = alloc,
	.free = free,
	.for_each_waiting = for_each_waiting,
};

/* ---- traps --------------------------------------------------------------------------------------------- */

void on_breakpoint(struct pt_regs *regs)
{
	if (probe_breakpoint(regs, NULL) != PROBE_HANDLED)
		fail("a breakpoint of nobody's");
}

void on_fault(struct pt_regs *regs, unsigned int vector)
{
	if (probe_fault(regs, vector) != PROBE_HANDLED)
		fail("a fault");
}

extern const char breakpoint_entry[], protection_entry[], page_fault_entry[];
static unsigned long idt[256][2];

static void set_gate(unsigned int vector, const char *entry)
{
	unsigned long at = (unsigned long)entry;

	idt[vector][0] = (at & 0xffff) | 8ul << 16 | (0x8e00 | (at & 0xffff0000)) << 32;
	idt[vector][1] = at >> 32;
}

static void load_idt(void)
{
	struct {
		unsigned short limit;
		unsigned long base;
	} __attribute__((packed)) pointer = { sizeof(idt) - 1, (unsigned long)idt };

	set_gate(3, breakpoint_entry);
	set_gate(13, protection_entry);
	set_gate(14, page_fault_entry);
	__asm__ volatile("lidt %0" : : "m"(pointer));
}

/* ---- the probes ---------------------------------------------------------------------------------------- */

static int waits_in_add;

__attribute__((noipa, section(".probed.add"))) long add(long a, long b)
{
	if (waits_in_add)
		yield();
	return a + b;
}

__attribute__((noipa, section(".probed.twice"))) long twice(long a)
{
	return add(a, a);
}

static long before, after, first_argument;

static int pre(struct kprobe *p, struct pt_regs *regs)
{
	before++;
	first_argument = regs_get_kernel_argument(regs, 0);
	return (void *)regs->ip == p->addr ? 0 : 1;
}

static void post(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
	(void)flags;
	after += (void *)regs->ip != p->addr;
}

static int entered(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	*(long *)ri->data = regs_get_kernel_argument(regs, 0);
	return 0;
}

static int returned(struct kretprobe_instance *ri, struct pt_regs *regs)
{
	regs_set_return_value(regs, regs_return_value(regs) + 1000 * *(long *)ri->data);
	return 0;
}

static struct kprobe kp = { .symbol_name = "add", .pre_handler = pre, .post_handler = post };
static struct kretprobe rp = {
	.kp.symbol_name = "twice",
	.entry_handler = entered,
	.handler = returned,
	.data_size = sizeof(long),
};

#define CHECK(what) \
	do { \
		if (!(what)) \
			fail(#what); \
	} while (0)

static long result;

static void second(void)
{
	result = twice(21);
	for (;;)
		yield();
}

/* The second task waits in a followed call while all probes stop; the call returns by itself. */
static void stops(void)
{
	unsigned long *top = (unsigned long *)(second_stack + sizeof(second_stack));
	struct probe_remains remains;

	/* Where `second` would return to, itself, and the registers that a switch loads. */
	top[-1] = 0;
	top[-2] = (unsigned long)second;
	stack_pointer[1] = (unsigned long)(top - 8);
	CHECK(register_kretprobe(&rp) == 0);
	waits_in_add = 1;
	yield();
	CHECK(unregister_kretprobe(&rp) == 0);
	CHECK(probe_stop(&remains) == 0 && remains.calls == 0 && remains.stubs == 0 && remains.probes == 0);
	CHECK(register_kprobe(&kp) == -108);
	waits_in_add = 0;
	yield();
	CHECK(result == 42);
	CHECK(probe_start_again() == 0);
}

/* No probe stands on what the kernel itself patches. */
static void call_twice(void)
{
	(void)twice(3);
}

/* Jumps come and go, and do what breakpoints do. */
static void jumps(void)
{
	long places;

	before = 0;
	CHECK(register_kprobe(&kp) == 0);
	places = probe_optimise();
	CHECK(places == 0 || places == 1);
	CHECK(add(1, 2) == 3 && before == 1);
	CHECK(probe_unoptimise() == 0 && add(1, 2) == 3 && before == 2);
	CHECK(probe_optimise_new(1) == 0 && probe_optimise_new(0) == 0);
	CHECK(unregister_kprobe(&kp) == 0 && add(1, 2) == 3 && before == 2);
	CHECK(probe_task_exiting(task_memory[0], (unsigned long)__builtin_frame_address(0)) == 1);
}

static void patched(void)
{
	patched_byte = (unsigned long)probed_add;
	CHECK(register_kprobe(&kp) == -22);
	patched_byte = 0;
	CHECK(register_kprobe(&kp) == 0 && unregister_kprobe(&kp) == 0);
}

void kernel_main(void)
{
	char list[512];

	load_idt();
	CHECK(probe_context_size() <= sizeof(context_memory));
	CHECK(probe_task_size() <= sizeof(task_memory[0]));
	probe_context_init(context_memory);
	probe_task_init(task_memory[0]);
	probe_task_init(task_memory[1]);
	probe_task_stack(task_memory[1], (size_t)second_stack, (size_t)second_stack + sizeof(second_stack));
	CHECK(probe_kernel_start(NULL) == -22);
	CHECK(register_kprobe(&kp) == -22);
	CHECK(probe_kernel_start(&host) == 0);
	CHECK(probe_self_test(list, sizeof(list)) == 0 && list[0] == '\0');
	CHECK(probe_self_test_at("twice", call_twice, list, sizeof(list)) == 0);
	CHECK(probe_self_test_at("nothing", call_twice, list, sizeof(list)) == -14 && list[0] != '\0');

	CHECK(register_kprobe(&kp) == 0 && register_kretprobe(&rp) == 0);
	CHECK(kprobes_list(list, sizeof(list), 1) < (long)sizeof(list));
	print(list);
	CHECK(twice(21) == 42 + 21000 && before == 1 && after == 1 && first_argument == 21);
	CHECK(add(1, 2) == 3 && before == 2 && after == 2);
	/* Text is written through its alias only, and both probes go. */
	CHECK(unregister_kprobe(&kp) == 0 && unregister_kretprobe(&rp) == 0);
	CHECK(twice(21) == 42 && before == 2);
	jumps();
	stops();
	patched();
	print("hits: ");
	print_number(before);
	print("\nPASS\n");
	finish(0x10);
}
