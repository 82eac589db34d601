//! The embedding program (a kernel, a process) and what it provides: the trait [`Host`].

use crate::addr::CodeAddr;
use crate::arch::{Arch, Memory, NativeArch, SaveSet};
pub use crate::arrival::Arrival;
use crate::error::{Refusal, TextError};
pub use crate::state::context::Context;
use crate::state::context::Running;
pub use crate::state::task::Task;
use crate::state::watch::WatchRange;
use core::ops::Range;

/// The saved registers of a host's architecture.
pub(crate) type RegsOf<H> = <<H as Host>::Arch as Arch>::Regs;

/// The calling convention of a host's architecture.
pub(crate) type CallsOf<H> = <<H as Host>::Arch as Arch>::Calls;

/// The jumps of a host's architecture.
pub(crate) type JumpsOf<H> = <<H as Host>::Arch as Arch>::Jumps;

/// The context that is running this.
#[inline(always)]
pub(crate) fn running<H: Host>(host: &H) -> Option<Running<'_, H::Arch>> {
    // SAFETY: `Host::context` owes just that one.
    host.context().map(|context| unsafe { Running::new(context) })
}

/// A function or other symbol of the probed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name, as the symbol table spells it.
    pub name: &'a str,
    /// Its first byte. On ppc64 ELFv1 the code, not the descriptor.
    pub start: CodeAddr,
    /// Its length in bytes; 0 if the symbol table does not say.
    pub len_bytes: usize,
    /// The kernel module or shared object that it belongs to; `None` for the kernel itself or the main
    /// program.
    pub module: Option<&'a str>,
    /// The distance in bytes from the global to the local entry (ppc64 ELFv2, `st_other`); 0 elsewhere.
    pub local_entry: u8,
}

/// A range of code that must not be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blacklisted<'a> {
    /// The first byte.
    pub start: CodeAddr,
    /// One past the last byte.
    pub end: CodeAddr,
    /// The symbol to print.
    pub name: &'a str,
}

/// Whether a host lets an address be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probeable {
    /// It is text that may be patched.
    Yes,
    /// It is not text at all.
    NotText,
    /// The host forbids it.
    Blacklisted,
    /// A probe would change the program's behaviour there, whatever the instruction is, for this reason.
    Refused(Refusal),
}

impl Probeable {
    /// Somebody else patches this text while it runs: a call or branch that the kernel switches, a function
    /// tracer's site. All bytes of such an instruction answer so, and no jump is laid over them (REG_20).
    pub const OTHERS_PATCH: Self =
        Self::Refused(Refusal::invalid("host.others_patch", "somebody else patches this instruction"));
}

/// A message for the host's log, never sent from the hit path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A breakpoint at this place could not be removed from text (it is still armed, its probe is kept).
    StuckBreakpoint(CodeAddr),
    /// A return could not be matched with a call (RET_10); the host stops the context next.
    LostReturn {
        /// The stub that was returned to.
        stub: CodeAddr,
    },
}

/// Debug registers that trap on data references; a host provides them by [`Host::watchpoints`].
///
/// At each reference the host calls [`Traps::watchpoint`](crate::traps::Traps::watchpoint) with the
/// register's number, after the instruction that has made the reference. If the processor traps before the
/// instruction (aarch64), the host steps over it first.
///
/// # Safety
/// When [`Watchpoints::disarm`] returns, no context starts a trap of that register any more.
pub unsafe trait Watchpoints: Sync {
    /// How many registers there are.
    fn count(&self) -> usize;

    /// Whether the processor can watch `range`.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, range: &WatchRange) -> Result<(), Refusal>;

    /// Makes register `index` trap on references to `range`, on every context.
    ///
    /// # Errors
    /// The operating system refuses: nothing has changed.
    fn arm(&self, index: usize, range: &WatchRange) -> Result<(), Refusal>;

    /// Undoes [`Watchpoints::arm`], on every context.
    fn disarm(&self, index: usize);
}

/// A task that waits, and all memory that has return addresses of its calls.
pub struct Waiting<'a, A: Arch> {
    /// The task.
    pub task: &'a Task<A>,
    /// Its stack, from its stack pointer up to the stack's end.
    pub stack: Range<usize>,
    /// Where its registers are saved, as far as that is not on the stack.
    pub elsewhere: &'a [Range<usize>],
}

/// The embedding program: its memory, its CPUs and tasks, its traps, its symbols.
///
/// A *context* runs one thing at a time and is interrupted by traps: a CPU in a kernel, a thread in a
/// process. A *task* owns a stack of calls: a task in a kernel, an interrupt stack, again a thread in a
/// process.
///
/// The host's trap code calls [`Traps::breakpoint`](crate::traps::Traps::breakpoint) at every breakpoint trap
/// and [`Traps::fault`](crate::traps::Traps::fault) at every fault, before its own handling, with interrupts
/// off (a kernel) or asynchronous signals kept away (a process). It calls
/// [`Events::task_exit`](crate::events::Events::task_exit) when a task ends, and
/// [`Events::text_going`](crate::events::Events::text_going) before text is unmapped.
///
/// # Safety
/// The core patches code on the strength of these functions. Each function documents what it owes, and what
/// goes wrong otherwise.
pub unsafe trait Host: Sync + Sized + 'static {
    /// The architecture that this program runs on.
    type Arch: NativeArch;
    /// Fault-free access to the interrupted context's memory.
    type Memory: Memory;

    /// The registers that the return trampoline saves beside the general ones. Choose [`SaveSet::General`]
    /// only if all handlers are built without floating point; otherwise a handler destroys the program's
    /// vector registers.
    const SAVE_SET: SaveSet;

    // ---- text ---------------------------------------------------------------------------------------------

    /// Copies live text, with the breakpoints in it, from the byte at `at` ([`Arch::first_byte`]) and returns
    /// how many bytes were readable. No lock, no allocation: on the hit path it is asked where a breakpoint
    /// has come or gone a moment ago, or is somebody else's.
    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize;

    /// Stores `bytes` from the byte at `at` on through an alias that is never executable, and calls
    /// [`NativeArch::publish`].
    ///
    /// One to four aligned bytes (on x86 one byte) appear at once to other cores; longer writes go to memory
    /// that nobody executes yet. Text does not change between calls except through this function; else a
    /// later restore destroys somebody else's patch.
    ///
    /// # Errors
    /// Nothing was written.
    ///
    /// # Safety
    /// The caller owns the range (a slot) or replaces an instruction by a breakpoint or back (text).
    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError>;

    /// A stretch of writes begins: until [`Host::end_writes`] on this context nobody else calls
    /// [`Host::write_text`]. What a write needs can be made ready once for all of them. Nests.
    ///
    /// A write may also be put off, to the end of the stretch at the latest, if no other context runs until
    /// then, and if it will not fail. [`Host::read_text`] and [`Host::sync_cores`] come after what was put
    /// off, and so does code of the program that the host calls meanwhile. Called under the registry's lock.
    #[inline(always)]
    fn begin_writes(&self) {}

    /// Ends what [`Host::begin_writes`] began.
    #[inline(always)]
    fn end_writes(&self) {}

    /// Returns after every context has executed a context-synchronising event and a full memory barrier since
    /// the call (an IPI to all CPUs; `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`). Without it a core may run
    /// stale instructions, and the core's grace periods end too early.
    fn sync_cores(&self);

    /// Maps `len_bytes` (a power of two, aligned to itself) of executable memory, readable and not writable,
    /// within `reach` bytes of `near` if the two are given. Filled through [`Host::write_text`].
    fn alloc_exec(&self, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr>;

    /// Unmaps what [`Host::alloc_exec`] returned.
    ///
    /// # Safety
    /// No context executes in it or will.
    unsafe fn free_exec(&self, at: CodeAddr, len_bytes: usize);

    /// A chunk of return stubs has been made at `chunk`, `len_bytes` long. `table` is the address of one word
    /// per stub, number 0 included: the final return address, in the program's own text, of the call that the
    /// stub was handed out for. It is written before the stub replaces a return address. A host with an
    /// unwinder describes the chunk to it (RET_7, RET_8). Called under the registry's lock.
    fn stubs_added(&self, chunk: CodeAddr, len_bytes: usize, table: usize) {
        let _ = (chunk, len_bytes, table);
    }

    /// A chunk of return stubs, and its table, are about to be freed: undoes [`Host::stubs_added`].
    fn stubs_removed(&self, chunk: CodeAddr) {
        let _ = chunk;
    }

    // ---- contexts and tasks -------------------------------------------------------------------------------

    /// The context that is running this, and no other one: who is given it changes it by plain stores. Called
    /// on the hit path: no lock, no allocation. `None` where there is no room for another one; then probes'
    /// handlers are skipped there and count as missed.
    fn context(&self) -> Option<&Context<Self::Arch>>;

    /// The task whose stack is running. Called on the hit path.
    ///
    /// Nothing depends on a right answer (RET_11): a call is listed in a task only if the stack pointer lies
    /// on that task's stack ([`Task::on_stack`]), and every call returns by its stub alone. If the answer is
    /// `None`, early or late, or an interrupt's stack is running, calls are followed all the same, without a
    /// list; one that never returns then keeps its instance until its probe goes. So give each stack that
    /// code runs on a [`Task`], interrupt stacks too, and change the answer with the stack as closely as you
    /// can.
    fn task(&self) -> Option<&Task<Self::Arch>>;

    /// Calls `visit` with every context that [`Host::context`] may ever have returned and that is not known
    /// to be dead. If one is left out, the memory of the handler that it runs may be freed.
    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Self::Arch>));

    /// Calls `visit` with every task that waits, by a call of its own and not because it was interrupted.
    /// [`Stopped::drain`](crate::Stopped::drain) changes return addresses in its memory, under the registry's
    /// lock; it allocates nothing and calls nothing of the host but [`Host::memory`].
    ///
    /// The task does not run from before `visit` is called until it has returned; else it returns to memory
    /// that is about to be freed. Tasks that are left out keep what they have, until their calls return.
    fn for_each_waiting(&self, visit: &mut dyn FnMut(&Waiting<'_, Self::Arch>)) {
        let _ = visit;
    }

    /// How many contexts can run at the same time: CPUs, in a process the CPUs that it may use. For default
    /// pool sizes.
    fn parallelism(&self) -> usize;

    /// Fault-free memory access for the running context.
    fn memory(&self) -> &Self::Memory;

    /// Keeps asynchronous interruptions (interrupts, signals) away while the interrupted context runs in a
    /// slot that ends in a breakpoint. Returns what [`Host::leave_slot`] needs. Called in the trap, on the
    /// hit path, after [`Arch::before_step`]; not for system calls ([`Arch::is_system_call`]).
    fn enter_slot(&self, regs: &mut <Self::Arch as Arch>::Regs) -> u64 {
        let _ = regs;
        0
    }

    /// Lets interruptions come again, in the trap at the slot's end, before [`Arch::after_step`].
    fn leave_slot(&self, regs: &mut <Self::Arch as Arch>::Regs, kept: u64) {
        let _ = (regs, kept);
    }

    /// Keeps this context from being preempted or moved (a kernel) while return handlers or a jprobe's
    /// handler run, until [`Host::unpin`] on the same context. Nests.
    #[inline(always)]
    fn pin(&self) {}

    /// Ends what [`Host::pin`] began.
    #[inline(always)]
    fn unpin(&self) {}

    /// The context, still pinned, is about to run the copy of an instruction between pre and post handlers.
    /// State of the program's that [`Host::pin`] has put aside must be there meanwhile (a process: errno).
    #[inline(always)]
    fn enter_copy(&self) {}

    /// The copy has run, or faulted.
    #[inline(always)]
    fn leave_copy(&self) {}

    // ---- symbols ------------------------------------------------------------------------------------------

    /// Calls `found` with every symbol called `name`. Asked once for each registration by name, also in a
    /// batch; never for one by address. A table sorted by name, or a hash, keeps a registration's cost the
    /// same however many symbols there are; a walk over all of them is all that many registrations cost.
    fn find_symbols(&self, name: &str, found: &mut dyn FnMut(&Symbol<'_>));

    /// Calls `found` with the symbol that covers `at`, if there is one. Asked once for each registration by
    /// address, and once more for a return probe or jprobe whose [`Host::arrival`] is unknown;
    /// for each line of a listing; by [`lay`](crate::jumps::JumpControl::lay) for each point without a jump.
    /// So it wants a table sorted by address.
    fn symbol_at(&self, at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>));

    /// Whether `at` may be probed. The core's and the backend's own text must answer no (put both crates'
    /// hit path into one section, or answer by symbol); else a hit inside the hit path recurses.
    /// Asked about the place of a probe, and about every byte that a jump displaces there (REG_20): so name
    /// whole instructions, as [`Probeable::OTHERS_PATCH`] where somebody else patches them.
    fn probeable(&self, at: CodeAddr) -> Probeable;

    /// Whether all bytes from `start` up to `end`, those of a few instructions, may be displaced by a jump:
    /// the first answer that is not [`Probeable::Yes`]. For hosts that can tell faster than byte by byte.
    fn all_probeable(&self, start: CodeAddr, end: CodeAddr) -> Probeable {
        let len = end.as_usize().wrapping_sub(start.as_usize());
        let mut answers = (0..len).map(|offset| self.probeable(start.wrapping_add(offset)));
        answers.find(|answer| *answer != Probeable::Yes).unwrap_or(Probeable::Yes)
    }

    /// How control arrives at `at`, a function's entry by its symbol (REG_19). Asked when a return probe or a
    /// jprobe is registered there, never on the hit path. For [`Arrival::Unknown`] the symbol's name decides.
    fn arrival(&self, at: CodeAddr) -> Arrival {
        let _ = at;
        Arrival::Unknown
    }

    /// Calls `visit` with every range that [`Host::probeable`] answers [`Probeable::Blacklisted`] or
    /// [`Probeable::Refused`] for.
    fn for_each_blacklisted(&self, visit: &mut dyn FnMut(&Blacklisted<'_>));

    // ---- optional powers ----------------------------------------------------------------------------------

    /// The processor's debug registers, for [`Probes::watch`](crate::Probes::watch).
    ///
    /// # Errors
    /// Why there are none; users see the sentence.
    fn watchpoints(&self) -> Result<&dyn Watchpoints, Refusal> {
        Err(Refusal::unsupported("host.no_watchpoints", "this host watches no memory"))
    }

    // ---- the rest -----------------------------------------------------------------------------------------

    /// Called again and again while the core waits for another context. May yield; must let that context run.
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Tells the host's log. Never called on the hit path, except right before [`Host::stop`].
    fn notice(&self, notice: Notice) {
        let _ = notice;
    }

    /// Stops the running context for good: it has returned to an address of ours that belongs to no call
    /// (RET_10).
    fn stop(&self, regs: &<Self::Arch as Arch>::Regs) -> !;
}
