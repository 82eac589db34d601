/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Linux-style kprobes, jprobes and return probes, in C: over libprobe_c.a, in a kernel or in a Linux process.
 *
 * Generated from the crate probe-c; do not edit. Functions answer 0 or a negative errno, unless said otherwise. Words like
 * REG_4 are rules that tests are named after (docs/porting-from-linux.md). Functions whose names begin with `probe_` are ours;
 * those of the process and those of the kernel are in the library for one of the two only.
 */


#ifndef PROBE_H
#define PROBE_H

/*
 * No header is needed: these are size_t, uint32_t and uint64_t, as GCC and Clang know them.
 */
typedef __SIZE_TYPE__ probe_size;
typedef __UINT32_TYPE__ probe_u32;
typedef __UINT64_TYPE__ probe_u64;

/*
 * The saved registers, laid out as Linux's own. Define PROBE_NO_PT_REGS if you have that structure already.
 */
#ifndef PROBE_NO_PT_REGS
#if defined(__x86_64__)
struct pt_regs {
        probe_u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
        probe_u64 orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__i386__)
struct pt_regs {
        probe_u32 bx, cx, dx, si, di, bp, ax, ds, es, fs, gs, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__aarch64__)
struct pt_regs {
        probe_u64 regs[31], sp, pc, pstate;
};
#elif defined(__powerpc64__)
struct pt_regs {
        probe_u64 gpr[32], nip, msr, orig_gpr3, ctr, link, xer, ccr, softe, trap, dar, dsisr, result;
};
#elif defined(__powerpc__)
struct pt_regs {
        probe_u32 gpr[32], nip, msr, orig_gpr3, ctr, link, xer, ccr, mq, trap, dar, dsisr, result;
};
#elif defined(__riscv) && __riscv_xlen == 64
struct pt_regs {
        probe_u64 epc, ra, sp, gp, tp, t0, t1, t2, s0, s1, a0, a1, a2, a3, a4, a5, a6, a7;
        probe_u64 s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, t3, t4, t5, t6, status;
};
#elif defined(__arm__)
struct pt_regs {
        probe_u32 r[15], pc, cpsr, orig_r0;
};
#else
#error "there is no backend for this architecture"
#endif
#endif

/*
 * Define PROBE_PREFIX if your program or kernel has such names already: all of them begin with it then. Rename
 * the library's symbols alike (capi/README.md).
 */
#ifdef PROBE_PREFIX
#define PROBE_GLUE(a, b) a##b
#define PROBE_PREFIXED(a, b) PROBE_GLUE(a, b)
#define disable_kprobe PROBE_PREFIXED(PROBE_PREFIX, disable_kprobe)
#define enable_kprobe PROBE_PREFIXED(PROBE_PREFIX, enable_kprobe)
#define instruction_pointer PROBE_PREFIXED(PROBE_PREFIX, instruction_pointer)
#define instruction_pointer_set PROBE_PREFIXED(PROBE_PREFIX, instruction_pointer_set)
#define jprobe PROBE_PREFIXED(PROBE_PREFIX, jprobe)
#define jprobe_return PROBE_PREFIXED(PROBE_PREFIX, jprobe_return)
#define kernel_stack_pointer PROBE_PREFIXED(PROBE_PREFIX, kernel_stack_pointer)
#define kprobe PROBE_PREFIXED(PROBE_PREFIX, kprobe)
#define kprobe_counters PROBE_PREFIXED(PROBE_PREFIX, kprobe_counters)
#define kprobe_fault_handler_t PROBE_PREFIXED(PROBE_PREFIX, kprobe_fault_handler_t)
#define kprobe_post_handler_t PROBE_PREFIXED(PROBE_PREFIX, kprobe_post_handler_t)
#define kprobe_pre_handler_t PROBE_PREFIXED(PROBE_PREFIX, kprobe_pre_handler_t)
#define kprobes_blacklist PROBE_PREFIXED(PROBE_PREFIX, kprobes_blacklist)
#define kprobes_enabled PROBE_PREFIXED(PROBE_PREFIX, kprobes_enabled)
#define kprobes_explain PROBE_PREFIXED(PROBE_PREFIX, kprobes_explain)
#define kprobes_list PROBE_PREFIXED(PROBE_PREFIX, kprobes_list)
#define kprobes_write_enabled PROBE_PREFIXED(PROBE_PREFIX, kprobes_write_enabled)
#define kretprobe PROBE_PREFIXED(PROBE_PREFIX, kretprobe)
#define kretprobe_handler_t PROBE_PREFIXED(PROBE_PREFIX, kretprobe_handler_t)
#define kretprobe_instance PROBE_PREFIXED(PROBE_PREFIX, kretprobe_instance)
#define kretprobe_real_return_address PROBE_PREFIXED(PROBE_PREFIX, kretprobe_real_return_address)
#define probe_breakpoint PROBE_PREFIXED(PROBE_PREFIX, probe_breakpoint)
#define probe_context_init PROBE_PREFIXED(PROBE_PREFIX, probe_context_init)
#define probe_context_size PROBE_PREFIXED(PROBE_PREFIX, probe_context_size)
#define probe_counters PROBE_PREFIXED(PROBE_PREFIX, probe_counters)
#define probe_fault PROBE_PREFIXED(PROBE_PREFIX, probe_fault)
#define probe_found_t PROBE_PREFIXED(PROBE_PREFIX, probe_found_t)
#define probe_host PROBE_PREFIXED(PROBE_PREFIX, probe_host)
#define probe_kernel_start PROBE_PREFIXED(PROBE_PREFIX, probe_kernel_start)
#define probe_objects_changed PROBE_PREFIXED(PROBE_PREFIX, probe_objects_changed)
#define probe_optimise PROBE_PREFIXED(PROBE_PREFIX, probe_optimise)
#define probe_optimise_new PROBE_PREFIXED(PROBE_PREFIX, probe_optimise_new)
#define probe_range_t PROBE_PREFIXED(PROBE_PREFIX, probe_range_t)
#define probe_remains PROBE_PREFIXED(PROBE_PREFIX, probe_remains)
#define probe_self_test PROBE_PREFIXED(PROBE_PREFIX, probe_self_test)
#define probe_self_test_at PROBE_PREFIXED(PROBE_PREFIX, probe_self_test_at)
#define probe_start PROBE_PREFIXED(PROBE_PREFIX, probe_start)
#define probe_start_again PROBE_PREFIXED(PROBE_PREFIX, probe_start_again)
#define probe_stop PROBE_PREFIXED(PROBE_PREFIX, probe_stop)
#define probe_symbol PROBE_PREFIXED(PROBE_PREFIX, probe_symbol)
#define probe_task_exit PROBE_PREFIXED(PROBE_PREFIX, probe_task_exit)
#define probe_task_exiting PROBE_PREFIXED(PROBE_PREFIX, probe_task_exiting)
#define probe_task_init PROBE_PREFIXED(PROBE_PREFIX, probe_task_init)
#define probe_task_size PROBE_PREFIXED(PROBE_PREFIX, probe_task_size)
#define probe_task_stack PROBE_PREFIXED(PROBE_PREFIX, probe_task_stack)
#define probe_text_going PROBE_PREFIXED(PROBE_PREFIX, probe_text_going)
#define probe_unoptimise PROBE_PREFIXED(PROBE_PREFIX, probe_unoptimise)
#define probe_waiting_t PROBE_PREFIXED(PROBE_PREFIX, probe_waiting_t)
#define register_jprobe PROBE_PREFIXED(PROBE_PREFIX, register_jprobe)
#define register_jprobes PROBE_PREFIXED(PROBE_PREFIX, register_jprobes)
#define register_kprobe PROBE_PREFIXED(PROBE_PREFIX, register_kprobe)
#define register_kprobes PROBE_PREFIXED(PROBE_PREFIX, register_kprobes)
#define register_kretprobe PROBE_PREFIXED(PROBE_PREFIX, register_kretprobe)
#define register_kretprobes PROBE_PREFIXED(PROBE_PREFIX, register_kretprobes)
#define regs_get_kernel_argument PROBE_PREFIXED(PROBE_PREFIX, regs_get_kernel_argument)
#define regs_return_value PROBE_PREFIXED(PROBE_PREFIX, regs_return_value)
#define regs_set_return_value PROBE_PREFIXED(PROBE_PREFIX, regs_set_return_value)
#define unregister_jprobe PROBE_PREFIXED(PROBE_PREFIX, unregister_jprobe)
#define unregister_jprobes PROBE_PREFIXED(PROBE_PREFIX, unregister_jprobes)
#define unregister_kprobe PROBE_PREFIXED(PROBE_PREFIX, unregister_kprobe)
#define unregister_kprobes PROBE_PREFIXED(PROBE_PREFIX, unregister_kprobes)
#define unregister_kretprobe PROBE_PREFIXED(PROBE_PREFIX, unregister_kretprobe)
#define unregister_kretprobes PROBE_PREFIXED(PROBE_PREFIX, unregister_kretprobes)
#endif

struct kprobe;
struct kretprobe_instance;


/**
 * Registers the probe disabled: it is planted, and no handler runs before `enable_kprobe` (REG_10).
 */
#define KPROBE_FLAG_DISABLED 2

/**
 * The caller knows that an instruction starts at `addr`, although no symbol covers it (REG_4).
 */
#define KPROBE_FLAG_UNCHECKED 256

/**
 * The most calls that a return probe can follow at the same time: more in `maxactive` is `-EINVAL` (RET_3).
 */
#define KRETPROBE_MAX_ACTIVE 1048575

/**
 * How long a reason code can be, its final NUL included.
 */
#define KPROBE_REASON_LEN 48

/**
 * `probe_breakpoint`, `probe_fault`: not ours; go on with your own handling.
 */
#define PROBE_NOT_OURS 0

/**
 * `probe_breakpoint`, `probe_fault`: resume with the registers as they are now.
 */
#define PROBE_HANDLED 1

/**
 * `probe_breakpoint`: raise a memory fault at the program counter. `probe_fault`: go on with your own
 * handling, with the registers as they are now.
 */
#define PROBE_FAULT 2

/**
 * `probeable`: it is text that may be patched.
 */
#define PROBEABLE_YES 0

/**
 * `probeable`: it is no text.
 */
#define PROBEABLE_NOT_TEXT 1

/**
 * `probeable`: the kernel forbids it.
 */
#define PROBEABLE_BLACKLISTED 2

/**
 * `probeable`: the kernel itself patches that byte (a static call, a tracer's site): no probe stands there,
 * and no jump lies over it (REG_20).
 */
#define PROBEABLE_PATCHED 3

/**
 * `arrival`: the symbol's name decides.
 */
#define PROBE_ARRIVAL_UNKNOWN 0

/**
 * `arrival`: by a call, which has put the return address where calls do.
 */
#define PROBE_ARRIVAL_CALLED 1

/**
 * `arrival`: a CPU, a program or a task begins there.
 */
#define PROBE_ARRIVAL_START 2

/**
 * `arrival`: by a jump, with a frame in place.
 */
#define PROBE_ARRIVAL_PART 3

/**
 * `arrival`: by a trap or an interrupt, or on the way back from a signal.
 */
#define PROBE_ARRIVAL_TRAP 4

/**
 * As much as a CPU's context takes on any architecture: for contexts in static memory, aligned to 64.
 */
#define PROBE_CONTEXT_SIZE 4096

/**
 * As much as a task takes on any architecture: for a field of the kernel's own task structure, aligned
 * to 16.
 */
#define PROBE_TASK_SIZE 64

/**
 * Called before the instruction, with the registers as they were before it. Non-zero: the handler has
 * changed the control flow, and the instruction is not run (HIT_2).
 */
typedef int (*kprobe_pre_handler_t)(struct kprobe *p, struct pt_regs *regs);

/**
 * Called after the instruction. `flags` is always 0.
 */
typedef void (*kprobe_post_handler_t)(struct kprobe *p, struct pt_regs *regs, unsigned long flags);

/**
 * Called when the instruction or a handler of this probe has faulted. Non-zero: the handler has dealt with
 * it (HIT_9).
 */
typedef int (*kprobe_fault_handler_t)(struct kprobe *p, struct pt_regs *regs, int trapnr);

/**
 * A kprobe: all fields are zero but those that the caller sets. `reason` and `handle` belong to the library.
 */
struct kprobe {
        /**
         * Where: an address of code, or null if `symbol_name` is set. While the probe is registered it is the
         * probe's address; unregistering restores the caller's value. On ppc64 ELFv1 the code, not the function
         * descriptor.
         */
        void *addr;
        /**
         * Where: a symbol, as `name` or `module:name`; or null if `addr` is set.
         */
        const char *symbol_name;
        /**
         * How far behind it, in bytes.
         */
        unsigned int offset;
        /**
         * Called before the instruction, if not null.
         */
        kprobe_pre_handler_t pre_handler;
        /**
         * Called after the instruction, if not null.
         */
        kprobe_post_handler_t post_handler;
        /**
         * Called at a fault, if not null.
         */
        kprobe_fault_handler_t fault_handler;
        /**
         * `KPROBE_FLAG_DISABLED`, `KPROBE_FLAG_UNCHECKED`.
         */
        probe_u32 flags;
        /**
         * Hits whose handlers were skipped. Brought up to date by `kprobe_counters` and when the probe is
         * unregistered.
         */
        unsigned long nmissed;
        /**
         * After a registration that failed, the stable code of the reason: `place.no_symbol`. Else empty.
         */
        char reason[KPROBE_REASON_LEN];
        /**
         * The library's. Zero while the probe is not registered. It is valid in this structure only: a copy of a
         * registered probe is not registered.
         */
        void *handle[4];
};

/**
 * One call that is followed, as its handlers see it.
 */
struct kretprobe_instance {
        /**
         * The probe.
         */
        struct kretprobe *rp;
        /**
         * Where the call returns to.
         */
        void *ret_addr;
        /**
         * The call's private data: `data_size` bytes, aligned to 16.
         */
        void *data;
};

/**
 * Called at a call's entry (non-zero: this call is left alone, RET_1) or at its return.
 */
typedef int (*kretprobe_handler_t)(struct kretprobe_instance *ri, struct pt_regs *regs);

/**
 * A return probe.
 */
struct kretprobe {
        /**
         * Where: a function's entry. Its handlers must be null.
         */
        struct kprobe kp;
        /**
         * Called when a followed call returns, if not null.
         */
        kretprobe_handler_t handler;
        /**
         * Called at each call's entry, if not null. Without it every call is followed.
         */
        kretprobe_handler_t entry_handler;
        /**
         * How many calls can be followed at the same time; 0 or less means the default (RET_3).
         */
        int maxactive;
        /**
         * Calls that were not followed because no instance was free. Brought up to date like `kp.nmissed`.
         */
        int nmissed;
        /**
         * How many bytes of private data each followed call gets, up to 4096. They are zero at entry.
         */
        probe_size data_size;
};

/**
 * A jprobe: on a function's entry, a function with the same arguments.
 */
struct jprobe {
        /**
         * Where. Its handlers must be null.
         */
        struct kprobe kp;
        /**
         * The function to be called with copies of the arguments. It returns, or calls `jprobe_return`.
         */
        const void *entry;
};

/**
 * The counts of a probe since it was registered; exact (HIT_8).
 */
struct probe_counters {
        /**
         * Hits at which its handlers were called; of a return probe, the calls that are or were followed.
         */
        probe_u64 hits;
        /**
         * Hits and returns whose handlers were skipped because they happened inside another hit.
         */
        probe_u64 missed_nested;
        /**
         * Calls that were not followed because no instance was free.
         */
        probe_u64 missed_pool;
        /**
         * Calls that the entry handler left alone.
         */
        probe_u64 vetoed;
        /**
         * Followed calls that never returned.
         */
        probe_u64 abandoned;
        /**
         * Faults of the instruction and of this probe's handlers.
         */
        probe_u64 faults;
        /**
         * The most calls that were followed at the same time.
         */
        probe_u32 pool_high_water;
};

/**
 * What cannot be freed yet of stopped probes. All 0: nothing leads into the library any more.
 */
struct probe_remains {
        /**
         * Followed calls that have not returned. Each still returns by way of its stub.
         */
        unsigned long calls;
        /**
         * Where one of them returns to.
         */
        unsigned long call;
        /**
         * Return stubs of calls that were given up and may return yet.
         */
        unsigned long stubs;
        /**
         * Probes that have not been unregistered.
         */
        unsigned long probes;
        /**
         * Slots that an interrupted context may be in.
         */
        unsigned long slots;
        /**
         * Detours that an interrupted context may be in.
         */
        unsigned long detours;
};

/**
 * A function or other symbol of the probed text.
 */
struct probe_symbol {
        /**
         * Its name.
         */
        const char *name;
        /**
         * Its first byte. On ppc64 ELFv1 the code, not the descriptor.
         */
        unsigned long start;
        /**
         * Its length in bytes; 0 where the symbol table does not say.
         */
        unsigned long len_bytes;
        /**
         * The module that it belongs to; null for the kernel itself.
         */
        const char *module;
        /**
         * The distance in bytes from the global to the local entry (ppc64 ELFv2, `st_other`); 0 elsewhere.
         */
        unsigned char local_entry;
};

/**
 * The kernel calls this with each symbol that it is asked for; `cookie` is the value that came with the
 * question.
 */
typedef void (*probe_found_t)(void *cookie, const struct probe_symbol *symbol);

/**
 * The kernel calls this with each range that must not be probed: first byte, one past the last, name.
 */
typedef void (*probe_range_t)(void *cookie, unsigned long start, unsigned long end, const char *name);

/**
 * The kernel calls this with each task that waits by a call of its own: the task, its stack from the stack
 * pointer up to the stack's end, and where else its registers are saved (0 and 0 if all are on the stack).
 */
typedef void (*probe_waiting_t)(void *cookie,
                                void *task,
                                unsigned long stack_low,
                                unsigned long stack_high,
                                unsigned long saved_low,
                                unsigned long saved_high);

/**
 * The functions that a kernel provides. Those marked *hit path* are called in traps, interrupts off, on all
 * CPUs at the same time, and in each other's callers: no lock, no allocation, nothing that waits. All others
 * are called by who calls this library, in the interrupt state that the caller has, and by several CPUs at
 * a time if several call; text at one address is written by one CPU at a time. None is called in a handler.
 * Those marked *may be null* have a default. The documentation of `probe_core::host::Host` says what goes
 * wrong where one breaks its promise.
 */
struct probe_host {
        /**
         * *Hit path.* Copies live text, and answers how many bytes were readable.
         */
        probe_size (*read_text)(unsigned long at, void *out, probe_size len);
        /**
         * Stores text through an alias that is never executable, and makes it visible to instruction fetch. One
         * to four aligned bytes at once. 0, or a negative errno and nothing was written.
         */
        int (*write_text)(unsigned long at, const void *bytes, probe_size len);
        /**
         * *Hit path.* Reads the interrupted context's memory without faulting, and answers how many bytes were
         * readable.
         */
        probe_size (*read_memory)(unsigned long at, void *out, probe_size len);
        /**
         * *Hit path.* Writes it without faulting, and answers how many bytes were writable.
         */
        probe_size (*write_memory)(unsigned long at, const void *bytes, probe_size len);
        /**
         * Returns after every CPU has executed a context-synchronising event (an IPI to all).
         */
        void (*sync_cores)(void);
        /**
         * Executable, not writable memory, `len` a power of two and aligned to itself, within `reach` bytes of
         * `near` if that is not 0. Answers 0 if there is none.
         */
        unsigned long (*alloc_exec)(probe_size len, unsigned long near, probe_size reach);
        /**
         * Gives it back.
         */
        void (*free_exec)(unsigned long at, probe_size len);
        /**
         * *Hit path.* This CPU's context: `probe_context_size` bytes, made by `probe_context_init`, there for
         * ever.
         */
        void *(*context)(void);
        /**
         * The context of CPU number `cpu`, from 0; null behind the last.
         */
        void *(*context_of)(probe_size cpu);
        /**
         * *Hit path.* The running task's `probe_task_size` bytes, made by `probe_task_init`; null if it has
         * none.
         */
        void *(*task)(void);
        /**
         * *Hit path, may be null.* Keeps interrupts away while a slot is stepped, in `regs`; answers what
         * `leave_slot` needs.
         */
        probe_u64 (*enter_slot)(struct pt_regs *regs);
        /**
         * *Hit path, may be null.* Lets them come again.
         */
        void (*leave_slot)(struct pt_regs *regs, probe_u64 kept);
        /**
         * *Hit path, may be null.* Disables preemption. Nests.
         */
        void (*pin)(void);
        /**
         * *Hit path, may be null.* Enables it again.
         */
        void (*unpin)(void);
        /**
         * Calls `found` with every symbol of that name.
         */
        void (*find_symbols)(const char *name, probe_found_t found, void *cookie);
        /**
         * Calls `found` with the symbol that covers `at`, if there is one.
         */
        void (*symbol_at)(unsigned long at, probe_found_t found, void *cookie);
        /**
         * Whether `at` may be probed: one of `PROBEABLE_…`. Refuse this library's text, the trap handlers, and
         * the functions that they call.
         */
        int (*probeable)(unsigned long at);
        /**
         * *May be null.* Calls `range` with every range that is blacklisted, for the listing.
         */
        void (*for_each_blacklisted)(probe_range_t range, void *cookie);
        /**
         * *May be null.* Called again and again while the library waits for another CPU.
         */
        void (*relax)(void);
        /**
         * *May be null.* Takes a line for the kernel's log.
         */
        void (*log)(const char *text);
        /**
         * Stops this CPU for good: a return that belongs to no call (RET_10), or a broken promise.
         */
        void (*stop)(void);
        /**
         * Memory for the registry; null if there is none. Asked while probes are registered or removed, never by
         * a hit. The largest pieces: up to 4 words for each probed place, in one piece for all; an array for
         * each batch, up to 1 KiB for each of its probes; the pool of a return probe. A kernel that has single
         * pages only registers probes one by one.
         */
        void *(*alloc)(probe_size len, probe_size align);
        /**
         * Gives it back.
         */
        void (*free)(void *at, probe_size len, probe_size align);
        /**
         * *May be null.* How control arrives at the function whose entry is `at`, one of `PROBE_ARRIVAL_…`:
         * return probes and jprobes stand only where calls arrive (REG_19).
         */
        int (*arrival)(unsigned long at);
        /**
         * *May be null.* Calls `waiting` with every task that waits by a call of its own, not because it was
         * interrupted; the task does not run meanwhile. `probe_stop` changes return addresses in that memory.
         * Tasks that are left out keep their calls.
         */
        void (*for_each_waiting)(probe_waiting_t waiting, void *cookie);
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Registers one kprobe. Answers 0 or a negative errno; then `reason` says why and nothing has changed.
 *
 * What the caller owes:
 * The module's promises.
 */
int register_kprobe(struct kprobe *p);

/**
 * Registers `num` kprobes, all or none (REG_12). At an error the `reason` of the one that failed is set.
 *
 * What the caller owes:
 * The module's promises, and `kps` points to `num` pointers.
 */
int register_kprobes(struct kprobe **kps, int num);

/**
 * Registers one return probe.
 *
 * What the caller owes:
 * The module's promises.
 */
int register_kretprobe(struct kretprobe *rp);

/**
 * Registers `num` return probes, all or none.
 *
 * What the caller owes:
 * The module's promises, and `rps` points to `num` pointers.
 */
int register_kretprobes(struct kretprobe **rps, int num);

/**
 * Registers one jprobe.
 *
 * What the caller owes:
 * The module's promises, and `entry` is a function that takes the probed function's arguments.
 */
int register_jprobe(struct jprobe *jp);

/**
 * Registers `num` jprobes, all or none.
 *
 * What the caller owes:
 * The promises of [`register_jprobe`], and `jps` points to `num` pointers.
 */
int register_jprobes(struct jprobe **jps, int num);

/**
 * Removes one kprobe: when this returns, no handler of it runs or will run (REG_13). Answers 0; `-EINVAL` if
 * it is not registered (then `addr` is null); `-EBUSY` in a handler (then it is registered still).
 *
 * What the caller owes:
 * The module's promises.
 */
int unregister_kprobe(struct kprobe *p);

/**
 * Removes `num` kprobes with one wait for all. The first error is answered; the rest is removed all the same
 * (REG_14).
 *
 * What the caller owes:
 * The module's promises, and `kps` points to `num` pointers.
 */
int unregister_kprobes(struct kprobe **kps, int num);

/**
 * Removes one return probe. Calls in flight return without a handler (RET_6).
 *
 * What the caller owes:
 * The module's promises.
 */
int unregister_kretprobe(struct kretprobe *rp);

/**
 * Removes `num` return probes with one wait for all.
 *
 * What the caller owes:
 * The module's promises, and `rps` points to `num` pointers.
 */
int unregister_kretprobes(struct kretprobe **rps, int num);

/**
 * Removes one jprobe.
 *
 * What the caller owes:
 * The module's promises.
 */
int unregister_jprobe(struct jprobe *jp);

/**
 * Removes `num` jprobes with one wait for all.
 *
 * What the caller owes:
 * The module's promises, and `jps` points to `num` pointers.
 */
int unregister_jprobes(struct jprobe **jps, int num);

/**
 * Lets the handlers of a registered probe run; of a return probe or jprobe, give its `kp`. Allowed in a
 * handler, where the breakpoint comes later (REG_18). Answers 0 or a negative errno.
 *
 * What the caller owes:
 * The module's promises.
 */
int enable_kprobe(struct kprobe *p);

/**
 * Keeps the handlers of a registered probe from running, at once; of a return probe or jprobe, give its
 * `kp`.
 *
 * What the caller owes:
 * The module's promises.
 */
int disable_kprobe(struct kprobe *p);

/**
 * Ends a jprobe's handler from wherever it is; the probed function runs next. A handler may as well return.
 *
 * In a process a handler should return: the vector registers that its callers have saved are not put back by
 * this.
 *
 * What the caller owes:
 * Called by a jprobe's handler, or by something that it has called.
 */
void jprobe_return(void) __attribute__((noreturn));

/**
 * The program counter: in a pre handler the probed place.
 *
 * What the caller owes:
 * `regs` is what a handler was given.
 */
unsigned long instruction_pointer(const struct pt_regs *regs);

/**
 * Sets the program counter. A pre handler that does so answers non-zero.
 *
 * What the caller owes:
 * `regs` is what a handler was given.
 */
void instruction_pointer_set(struct pt_regs *regs, unsigned long at);

/**
 * The stack pointer.
 *
 * What the caller owes:
 * `regs` is what a handler was given.
 */
unsigned long kernel_stack_pointer(const struct pt_regs *regs);

/**
 * The ABI's integer return value, in a return handler.
 *
 * What the caller owes:
 * `regs` is what a handler was given.
 */
unsigned long regs_return_value(const struct pt_regs *regs);

/**
 * Changes the integer return value; the caller of the probed function sees it (RET_4).
 *
 * What the caller owes:
 * `regs` is what a handler was given.
 */
void regs_set_return_value(struct pt_regs *regs, unsigned long value);

/**
 * The integer argument number `n`, from 0, in a handler at a function's entry. 0 where it cannot be read.
 *
 * What the caller owes:
 * `regs` is what a handler was given.
 */
unsigned long regs_get_kernel_argument(const struct pt_regs *regs, unsigned int n);

/**
 * One line per probe, in the format of the kernel's file `kprobes/list` (CTL_3). The unprivileged see zeros
 * for addresses.
 *
 * What the caller owes:
 * `buf` points to `len` bytes, or is null.
 */
long kprobes_list(char *buf, probe_size len, int is_privileged);

/**
 * One line per range that must not be probed, in the format of the kernel's file `kprobes/blacklist`
 * (CTL_4).
 *
 * What the caller owes:
 * `buf` points to `len` bytes, or is null.
 */
long kprobes_blacklist(char *buf, probe_size len, int is_privileged);

/**
 * 1 if probes are on, 0 if they are all switched off, or a negative errno.
 */
int kprobes_enabled(void);

/**
 * Takes the text that a user writes to the kernel's file `kprobes/enabled` (CTL_2). Answers 0 or a negative
 * errno.
 *
 * What the caller owes:
 * `text` ends with NUL.
 */
int kprobes_write_enabled(const char *text);

/**
 * The counters of a registered probe (of a return probe or jprobe, give its `kp`). Also brings `nmissed` up
 * to date. Answers 0, or `-EINVAL` if it is not registered. Allowed in a handler.
 *
 * What the caller owes:
 * Both pointers are valid or null.
 */
int kprobe_counters(struct kprobe *p, struct probe_counters *out);

/**
 * The outcome of a registration at this address, as one sentence, without registering (REG_9): how the
 * instruction would be executed, whether return probes can stand there, and why there would be no jump, or
 * where executable memory for its detour would have to be.
 *
 * What the caller owes:
 * `buf` points to `len` bytes, or is null.
 */
long kprobes_explain(unsigned long addr, char *buf, probe_size len);

/**
 * The real return address of a call whose return address `at` a return probe has replaced; otherwise `at`
 * itself (RET_8). For stack walks.
 */
unsigned long kretprobe_real_return_address(unsigned long at);

/**
 * Gives every probe that can have one a jump instead of its breakpoint, and answers how many places have one
 * now, or a negative errno: `-EBUSY` in a handler; that of the first text that could not be written, whose
 * probe keeps its breakpoint. `kprobes_explain` says where none can be, and why.
 */
long probe_optimise(void);

/**
 * Gives every probe its breakpoint back. Answers 0 or a negative errno, as `probe_optimise` does.
 */
int probe_unoptimise(void);

/**
 * Whether probes get their jumps when they are registered, enabled or switched on (`is_on` not 0), or only
 * by `probe_optimise`, as at first. Probes that are registered stay as they are. Answers 0 or a negative
 * errno.
 */
int probe_optimise_new(int is_on);

/**
 * Stops all probes: no handler runs any more, all text is original, and registering is `-ESHUTDOWN`. Calls
 * that wait and that the kernel shows get their return addresses back and return by themselves, without a
 * handler. Then says what remains; call it again as long as somebody else's doing is missing: calls return,
 * probes are unregistered. Answers 0; `-EBUSY` in a handler; `-EFAULT` if text could not be written
 * somewhere, where a breakpoint stands without handlers until this is called again.
 *
 * What the caller owes:
 * `out` is valid or null.
 */
int probe_stop(struct probe_remains *out);

/**
 * Ends what `probe_stop` has begun: probes can be registered again. Answers 0; `-EBUSY` in a handler.
 */
int probe_start_again(void);

/**
 * Tests the promises of the kernel or process that need no probe. Answers 0; `-EFAULT`, and `buf` gets a
 * sentence that names the promise that is broken; or another negative errno.
 *
 * What the caller owes:
 * `buf` points to `len` bytes, or is null.
 */
int probe_self_test(char *buf, probe_size len);

/**
 * Tests what a hit shows: plants probes on the function `symbol` (`name` or `module:name`), which nobody
 * else probes, has `call` call it, also in a handler, and takes them away again. The trap has to arrive,
 * leave the gap below the interrupted stack, nest, run the slot and come back through the stub. Answers as
 * `probe_self_test` does.
 *
 * What the caller owes:
 * `symbol` ends with NUL; `call` calls that function and nothing that must not be called in a handler; `buf`
 * points to `len` bytes, or is null.
 */
int probe_self_test_at(const char *symbol, void (*call)(void), char *buf, probe_size len);

/**
 * Makes the process ready to be probed: installs the signal handlers and finds out how text can be written.
 * The first registration does so by itself; call this earlier, before the program starts threads, if you
 * can. Answers 0 or a negative errno.
 */
int probe_start(void);

/**
 * Looks whether shared objects have been unloaded, and makes their probes `[GONE]` (CTL_5). Call it after
 * `dlclose`.
 */
void probe_objects_changed(void);

/**
 * Takes the kernel's functions and tests as many of their promises as can be tested. Call it once, when
 * everything that the table names is in place. Answers 0; `-EINVAL`: one is missing, or it was called
 * before; `-EFAULT`: a promise is not kept, which `log` is told and `probe_self_test` tells again.
 *
 * What the caller owes:
 * `host` is valid, and from now on the functions do what the table says of each.
 */
int probe_kernel_start(const struct probe_host *host);

/**
 * The breakpoint trap's handler calls this first, with interrupts off. Answers `PROBE_NOT_OURS`,
 * `PROBE_HANDLED` or `PROBE_FAULT`; at the last, `*fault_address` is the address that the program's
 * instruction could not access.
 *
 * What the caller owes:
 * `regs` holds the interrupted context's registers, and the handler resumes with the registers that this
 * leaves there; `fault_address` is valid or null.
 */
int probe_breakpoint(struct pt_regs *regs, unsigned long *fault_address);

/**
 * Every fault's handler calls this first, with the architecture's trap number. Answers `PROBE_NOT_OURS`,
 * `PROBE_HANDLED` or `PROBE_FAULT`.
 *
 * What the caller owes:
 * As of [`probe_breakpoint`].
 */
int probe_fault(struct pt_regs *regs, probe_u32 trap_number);

/**
 * How many bytes a CPU's context takes, aligned to 64.
 */
probe_size probe_context_size(void);

/**
 * Makes a CPU's context.
 *
 * What the caller owes:
 * `at` points to that many bytes, so aligned, that nobody else uses.
 */
void probe_context_init(void *at);

/**
 * How many bytes a task takes, aligned to 16.
 */
probe_size probe_task_size(void);

/**
 * Makes a task's state.
 *
 * What the caller owes:
 * `at` points to that many bytes, so aligned, that nobody else uses.
 */
void probe_task_init(void *at);

/**
 * Says that the stack of a task lies from `low` up to `high`, before the task runs (RET_11). Without it,
 * return probes follow the task's calls, but do not notice calls that never return: each keeps its instance.
 *
 * What the caller owes:
 * `task` was made by [`probe_task_init`], and `probe_host.task` has not answered it yet.
 */
void probe_task_stack(void *task, probe_size low, probe_size high);

/**
 * A task ends: the calls that it has in flight will not return (RET_7). Call it before the task's memory is
 * used for something else. Answers 1 if no call is left; 0 where it is called on the task's own stack, on
 * which calls may still return: call it again later, from another stack.
 *
 * What the caller owes:
 * `task` was made by [`probe_task_init`], and the task does not run any more, but for this call.
 */
int probe_task_exit(void *task);

/**
 * A task is about to end, in functions that still return, and has left most of its calls without returning:
 * those below its stack pointer `sp`, and those that certainly will not return, count as abandoned. Answers
 * 1 if no call is left, so that `probe_task_exit` is not needed.
 *
 * What the caller owes:
 * `task` was made by [`probe_task_init`], and its stack is the one that runs, at `sp`.
 */
int probe_task_exiting(void *task, unsigned long sp);

/**
 * Text is going away (a module): its probes become `[GONE]`, and nothing is written there again (CTL_5).
 */
void probe_text_going(unsigned long start, unsigned long end);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PROBE_H */
