//! The library for a kernel in C: [`probe_host`] is the table of functions that the kernel provides, and the
//! functions here are those that its trap handlers call.
//!
//! Nothing else of the kernel is used: memory for the registry comes from the table, too. Before
//! [`probe_kernel_start`] every function answers `-EINVAL`, and no trap is ours.

/// Calls the table's function; before the kernel has started it gives the answer instead, as no probe is
/// planted then.
macro_rules! call {
    ($host:expr, $name:ident ( $($argument:expr),* ), or $without:expr) => {
        match $host.table().and_then(|table| table.$name) {
            // SAFETY: the kernel's promise at `probe_kernel_start`; the arguments are what the table asks
            // for.
            Some(function) => unsafe { function($($argument),*) },
            None => $without,
        }
    };
}

mod host;
mod runtime;

use crate::Native;
use crate::types::pt_regs;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};
use probe_core::error::Errno;
use probe_core::host::{Context, Task};
use probe_core::traps::{FaultVerdict, Trap};
use probe_core::{CodeAddr, Probes};

/// The host of this library's probes.
pub type TheHost = CKernel;

/// `probe_breakpoint`, `probe_fault`: not ours; go on with your own handling.
pub const PROBE_NOT_OURS: c_int = 0;
/// `probe_breakpoint`, `probe_fault`: resume with the registers as they are now.
pub const PROBE_HANDLED: c_int = 1;
/// `probe_breakpoint`: raise a memory fault at the program counter. `probe_fault`: go on with your own
/// handling, with the registers as they are now.
pub const PROBE_FAULT: c_int = 2;

/// `probeable`: it is text that may be patched.
pub const PROBEABLE_YES: c_int = 0;
/// `probeable`: it is no text.
pub const PROBEABLE_NOT_TEXT: c_int = 1;
/// `probeable`: the kernel forbids it.
pub const PROBEABLE_BLACKLISTED: c_int = 2;
/// `probeable`: the kernel itself patches that byte (a static call, a tracer's site): no probe stands there,
/// and no jump lies over it (REG_20).
pub const PROBEABLE_PATCHED: c_int = 3;

/// `arrival`: the symbol's name decides.
pub const PROBE_ARRIVAL_UNKNOWN: c_int = 0;
/// `arrival`: by a call, which has put the return address where calls do.
pub const PROBE_ARRIVAL_CALLED: c_int = 1;
/// `arrival`: a CPU, a program or a task begins there.
pub const PROBE_ARRIVAL_START: c_int = 2;
/// `arrival`: by a jump, with a frame in place.
pub const PROBE_ARRIVAL_PART: c_int = 3;
/// `arrival`: by a trap or an interrupt, or on the way back from a signal.
pub const PROBE_ARRIVAL_TRAP: c_int = 4;

/// A function or other symbol of the probed text.
#[repr(C)]
pub struct probe_symbol {
    /// Its name.
    pub name: *const c_char,
    /// Its first byte. On ppc64 ELFv1 the code, not the descriptor.
    pub start: c_ulong,
    /// Its length in bytes; 0 where the symbol table does not say.
    pub len_bytes: c_ulong,
    /// The module that it belongs to; null for the kernel itself.
    pub module: *const c_char,
    /// The distance in bytes from the global to the local entry (ppc64 ELFv2, `st_other`); 0 elsewhere.
    pub local_entry: u8,
}

/// The kernel calls this with each symbol that it is asked for; `cookie` is the value that came with the
/// question.
pub type probe_found_t = unsafe extern "C" fn(cookie: *mut c_void, symbol: *const probe_symbol);

/// The kernel calls this with each range that must not be probed: first byte, one past the last, name.
pub type probe_range_t =
    unsafe extern "C" fn(cookie: *mut c_void, start: c_ulong, end: c_ulong, name: *const c_char);

/// The kernel calls this with each task that waits by a call of its own: the task, its stack from the stack
/// pointer up to the stack's end, and where else its registers are saved (0 and 0 if all are on the stack).
pub type probe_waiting_t = unsafe extern "C" fn(
    cookie: *mut c_void,
    task: *mut c_void,
    stack_low: c_ulong,
    stack_high: c_ulong,
    saved_low: c_ulong,
    saved_high: c_ulong,
);

/// The functions that a kernel provides. Those marked *hit path* are called in traps, interrupts off, on all
/// CPUs at the same time, and in each other's callers: no lock, no allocation, nothing that waits. All others
/// are called by who calls this library, in the interrupt state that the caller has, and by several CPUs at
/// a time if several call; text at one address is written by one CPU at a time. None is called in a handler.
/// Those marked *may be null* have a default. The documentation of `probe_core::host::Host` says what goes
/// wrong where one breaks its promise.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct probe_host {
    /// *Hit path.* Copies live text, and answers how many bytes were readable.
    pub read_text: Option<unsafe extern "C" fn(at: c_ulong, out: *mut c_void, len: usize) -> usize>,
    /// Stores text through an alias that is never executable, and makes it visible to instruction fetch. One
    /// to four aligned bytes at once. 0, or a negative errno and nothing was written.
    pub write_text: Option<unsafe extern "C" fn(at: c_ulong, bytes: *const c_void, len: usize) -> c_int>,
    /// *Hit path.* Reads the interrupted context's memory without faulting, and answers how many bytes were
    /// readable.
    pub read_memory: Option<unsafe extern "C" fn(at: c_ulong, out: *mut c_void, len: usize) -> usize>,
    /// *Hit path.* Writes it without faulting, and answers how many bytes were writable.
    pub write_memory: Option<unsafe extern "C" fn(at: c_ulong, bytes: *const c_void, len: usize) -> usize>,
    /// Returns after every CPU has executed a context-synchronising event (an IPI to all).
    pub sync_cores: Option<unsafe extern "C" fn()>,
    /// Executable, not writable memory, `len` a power of two and aligned to itself, within `reach` bytes of
    /// `near` if that is not 0. Answers 0 if there is none.
    pub alloc_exec: Option<unsafe extern "C" fn(len: usize, near: c_ulong, reach: usize) -> c_ulong>,
    /// Gives it back.
    pub free_exec: Option<unsafe extern "C" fn(at: c_ulong, len: usize)>,
    /// *Hit path.* This CPU's context: `probe_context_size` bytes, made by `probe_context_init`, there for
    /// ever.
    pub context: Option<unsafe extern "C" fn() -> *mut c_void>,
    /// The context of CPU number `cpu`, from 0; null behind the last.
    pub context_of: Option<unsafe extern "C" fn(cpu: usize) -> *mut c_void>,
    /// *Hit path.* The running task's `probe_task_size` bytes, made by `probe_task_init`; null if it has
    /// none.
    pub task: Option<unsafe extern "C" fn() -> *mut c_void>,
    /// *Hit path, may be null.* Keeps interrupts away while a slot is stepped, in `regs`; answers what
    /// `leave_slot` needs.
    pub enter_slot: Option<unsafe extern "C" fn(regs: *mut pt_regs) -> u64>,
    /// *Hit path, may be null.* Lets them come again.
    pub leave_slot: Option<unsafe extern "C" fn(regs: *mut pt_regs, kept: u64)>,
    /// *Hit path, may be null.* Disables preemption. Nests.
    pub pin: Option<unsafe extern "C" fn()>,
    /// *Hit path, may be null.* Enables it again.
    pub unpin: Option<unsafe extern "C" fn()>,
    /// Calls `found` with every symbol of that name.
    pub find_symbols:
        Option<unsafe extern "C" fn(name: *const c_char, found: probe_found_t, cookie: *mut c_void)>,
    /// Calls `found` with the symbol that covers `at`, if there is one.
    pub symbol_at: Option<unsafe extern "C" fn(at: c_ulong, found: probe_found_t, cookie: *mut c_void)>,
    /// Whether `at` may be probed: one of `PROBEABLE_…`. Refuse this library's text, the trap handlers, and
    /// the functions that they call.
    pub probeable: Option<unsafe extern "C" fn(at: c_ulong) -> c_int>,
    /// *May be null.* Calls `range` with every range that is blacklisted, for the listing.
    pub for_each_blacklisted: Option<unsafe extern "C" fn(range: probe_range_t, cookie: *mut c_void)>,
    /// *May be null.* Called again and again while the library waits for another CPU.
    pub relax: Option<unsafe extern "C" fn()>,
    /// *May be null.* Takes a line for the kernel's log.
    pub log: Option<unsafe extern "C" fn(text: *const c_char)>,
    /// Stops this CPU for good: a return that belongs to no call (RET_10), or a broken promise.
    pub stop: Option<unsafe extern "C" fn()>,
    /// Memory for the registry; null if there is none. Asked while probes are registered or removed, never by
    /// a hit. The largest pieces: up to 4 words for each probed place, in one piece for all; an array for
    /// each batch, up to 1 KiB for each of its probes; the pool of a return probe. A kernel that has single
    /// pages only registers probes one by one.
    pub alloc: Option<unsafe extern "C" fn(len: usize, align: usize) -> *mut c_void>,
    /// Gives it back.
    pub free: Option<unsafe extern "C" fn(at: *mut c_void, len: usize, align: usize)>,
    /// *May be null.* How control arrives at the function whose entry is `at`, one of `PROBE_ARRIVAL_…`:
    /// return probes and jprobes stand only where calls arrive (REG_19).
    pub arrival: Option<unsafe extern "C" fn(at: c_ulong) -> c_int>,
    /// *May be null.* Calls `waiting` with every task that waits by a call of its own, not because it was
    /// interrupted; the task does not run meanwhile. `probe_stop` changes return addresses in that memory.
    /// Tasks that are left out keep their calls.
    pub for_each_waiting: Option<unsafe extern "C" fn(waiting: probe_waiting_t, cookie: *mut c_void)>,
}

impl probe_host {
    /// Whether everything that has no default is there.
    fn is_complete(&self) -> bool {
        self.read_text.is_some()
            && self.write_text.is_some()
            && self.read_memory.is_some()
            && self.write_memory.is_some()
            && self.sync_cores.is_some()
            && self.alloc_exec.is_some()
            && self.free_exec.is_some()
            && self.context.is_some()
            && self.context_of.is_some()
            && self.task.is_some()
            && self.find_symbols.is_some()
            && self.symbol_at.is_some()
            && self.probeable.is_some()
            && self.stop.is_some()
            && self.alloc.is_some()
            && self.free.is_some()
    }
}

/// A kernel in C.
pub struct CKernel {
    table: UnsafeCell<MaybeUninit<probe_host>>,
    state: AtomicU8,
}

// SAFETY: the table is written once, before the state says so.
unsafe impl Sync for CKernel {}

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const READY: u8 = 2;

static PROBES: Probes<CKernel> =
    Probes::new(CKernel { table: UnsafeCell::new(MaybeUninit::uninit()), state: AtomicU8::new(EMPTY) });

impl CKernel {
    /// The table, once it is there.
    #[inline(always)]
    fn table(&self) -> Option<&probe_host> {
        if self.state.load(Ordering::Acquire) != READY {
            return None;
        }
        // SAFETY: written before the state said so, and never again.
        Some(unsafe { &*self.table.get().cast::<probe_host>() })
    }
}

/// Takes the kernel's functions and tests as many of their promises as can be tested. Call it once, when
/// everything that the table names is in place. Answers 0; `-EINVAL`: one is missing, or it was called
/// before; `-EFAULT`: a promise is not kept, which `log` is told and `probe_self_test` tells again.
///
/// # Safety
/// `host` is valid, and from now on the functions do what the table says of each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_kernel_start(host: *const probe_host) -> c_int {
    // SAFETY: the caller's promise.
    let Some(host) = (unsafe { host.as_ref() }).filter(|host| host.is_complete()) else {
        return -Errno::EINVAL.as_i32();
    };
    let kernel = PROBES.host();
    if kernel.state.compare_exchange(EMPTY, WRITING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return -Errno::EINVAL.as_i32();
    }
    // SAFETY: nobody else is past the exchange, and nobody reads before the state says so.
    unsafe { kernel.table.get().cast::<probe_host>().write(*host) };
    kernel.state.store(READY, Ordering::Release);
    let Err(error) = PROBES.self_test() else { return 0 };
    if let Some(log) = host.log {
        // SAFETY: what the table says of it; the text ends with NUL.
        crate::testing::say(&error, |text| unsafe { log(text) });
    }
    -Errno::EFAULT.as_i32()
}

/// The probes, or a negative errno.
pub(crate) fn probes() -> Result<&'static Probes<TheHost>, c_int> {
    started().ok_or(-Errno::EINVAL.as_i32())
}

/// The probes once they are started.
pub(crate) fn started() -> Option<&'static Probes<TheHost>> {
    PROBES.host().table().map(|_| &PROBES)
}

/// The breakpoint trap's handler calls this first, with interrupts off. Answers `PROBE_NOT_OURS`,
/// `PROBE_HANDLED` or `PROBE_FAULT`; at the last, `*fault_address` is the address that the program's
/// instruction could not access.
///
/// # Safety
/// `regs` holds the interrupted context's registers, and the handler resumes with the registers that this
/// leaves there; `fault_address` is valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_breakpoint(regs: *mut pt_regs, fault_address: *mut c_ulong) -> c_int {
    // SAFETY: the caller's promise.
    match PROBES.traps().breakpoint(unsafe { &mut *regs }) {
        Trap::NotOurs => PROBE_NOT_OURS,
        Trap::Handled => PROBE_HANDLED,
        Trap::Fault(fault) => {
            // SAFETY: the caller's promise.
            if let Some(address) = unsafe { fault_address.as_mut() } {
                *address = fault.addr as c_ulong;
            }
            PROBE_FAULT
        }
    }
}

/// Every fault's handler calls this first, with the architecture's trap number. Answers `PROBE_NOT_OURS`,
/// `PROBE_HANDLED` or `PROBE_FAULT`.
///
/// # Safety
/// As of [`probe_breakpoint`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_fault(regs: *mut pt_regs, trap_number: u32) -> c_int {
    // SAFETY: the caller's promise.
    match PROBES.traps().fault(unsafe { &mut *regs }, trap_number) {
        FaultVerdict::NotOurs => PROBE_NOT_OURS,
        FaultVerdict::Handled => PROBE_HANDLED,
        FaultVerdict::Restored => PROBE_FAULT,
    }
}

/// As much as a CPU's context takes on any architecture: for contexts in static memory, aligned to 64.
pub const PROBE_CONTEXT_SIZE: usize = 4096;

/// As much as a task takes on any architecture: for a field of the kernel's own task structure, aligned
/// to 16.
pub const PROBE_TASK_SIZE: usize = 64;

const _: () = assert!(size_of::<Context<Native>>() <= PROBE_CONTEXT_SIZE);
const _: () = assert!(size_of::<Task<Native>>() <= PROBE_TASK_SIZE);

/// How many bytes a CPU's context takes, aligned to 64.
#[unsafe(no_mangle)]
pub extern "C" fn probe_context_size() -> usize {
    const { assert!(align_of::<Context<Native>>() <= 64) };
    size_of::<Context<Native>>()
}

/// Makes a CPU's context.
///
/// # Safety
/// `at` points to that many bytes, so aligned, that nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_context_init(at: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<Context<Native>>().write(Context::new()) };
}

/// How many bytes a task takes, aligned to 16.
#[unsafe(no_mangle)]
pub extern "C" fn probe_task_size() -> usize {
    const { assert!(align_of::<Task<Native>>() <= 16) };
    size_of::<Task<Native>>()
}

/// Makes a task's state.
///
/// # Safety
/// `at` points to that many bytes, so aligned, that nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_task_init(at: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<Task<Native>>().write(Task::new()) };
}

/// Says that the stack of a task lies from `low` up to `high`, before the task runs (RET_11). Without it,
/// return probes follow the task's calls, but do not notice calls that never return: each keeps its instance.
///
/// # Safety
/// `task` was made by [`probe_task_init`], and `probe_host.task` has not answered it yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_task_stack(task: *mut c_void, low: usize, high: usize) {
    // SAFETY: the caller's promise.
    if let Some(task) = unsafe { task.cast::<Task<Native>>().as_mut() } {
        task.set_stack(low..high);
    }
}

/// A task ends: the calls that it has in flight will not return (RET_7). Call it before the task's memory is
/// used for something else. Answers 1 if no call is left; 0 where it is called on the task's own stack, on
/// which calls may still return: call it again later, from another stack.
///
/// # Safety
/// `task` was made by [`probe_task_init`], and the task does not run any more, but for this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_task_exit(task: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let task = unsafe { task.cast::<Task<Native>>().as_ref() };
    task.is_none_or(|task| PROBES.events().task_exit(task)).into()
}

/// A task is about to end, in functions that still return, and has left most of its calls without returning:
/// those below its stack pointer `sp`, and those that certainly will not return, count as abandoned. Answers
/// 1 if no call is left, so that `probe_task_exit` is not needed.
///
/// # Safety
/// `task` was made by [`probe_task_init`], and its stack is the one that runs, at `sp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_task_exiting(task: *mut c_void, sp: c_ulong) -> c_int {
    // SAFETY: the caller's promise.
    let task = unsafe { task.cast::<Task<Native>>().as_ref() };
    task.is_none_or(|task| PROBES.events().task_exiting(task, sp as usize)).into()
}

/// Text is going away (a module): its probes become `[GONE]`, and nothing is written there again (CTL_5).
#[unsafe(no_mangle)]
pub extern "C" fn probe_text_going(start: c_ulong, end: c_ulong) {
    if started().is_some() {
        PROBES.events().text_going(CodeAddr::new(start as usize), CodeAddr::new(end as usize));
    }
}
