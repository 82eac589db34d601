//! What an instruction set has to tell the core: the traits that a backend implements.
//!
//! A backend turns bytes into decisions ([`Arch::decode`]) and registers into registers
//! ([`Arch::simulate`]). It knows no registry, no process and no kernel. Everything in [`Arch`] is pure: it
//! builds and is tested on every machine. The few things that must be executed on the architecture itself
//! (trampolines, cache maintenance) are in [`NativeArch`].

mod step;

pub use step::SingleStep;

use crate::addr::CodeAddr;
use crate::error::Refusal;
use core::fmt;

/// The registers of an interrupted context, laid out by the backend (Linux: `struct pt_regs`).
///
/// Plain data: every bit pattern is valid. A kernel whose trap frame has this layout passes the frame itself.
pub trait Regs: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The program counter.
    fn pc(&self) -> CodeAddr;
    /// Sets the program counter.
    fn set_pc(&mut self, pc: CodeAddr);
    /// The stack pointer.
    fn sp(&self) -> usize;

    /// The registers' names in the order of their numbers, as tracing tools spell them (`di`, `rdi`, `x0`, `r3`, `gpr3`).
    ///
    /// A register may have several names; then each is listed with the same number.
    fn names() -> &'static [(&'static str, usize)];
    /// The value of register number `index`, or `None` where there is no such register.
    fn register(&self, index: usize) -> Option<usize>;
}

/// Memory of the interrupted context, read and written without ever faulting.
///
/// # Safety
/// An implementation returns `Err` for memory that cannot be accessed and has then no effect, except that a
/// write that crosses into an inaccessible page may have written the part before it.
pub unsafe trait Memory {
    /// Reads `out.len()` bytes from `addr`.
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault>;
    /// Writes `bytes` to `addr`.
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault>;

    /// Reads one native word, in the machine's byte order.
    #[inline]
    fn read_usize(&self, addr: usize) -> Result<usize, MemFault> {
        let mut word = [0; size_of::<usize>()];
        self.read(addr, &mut word)?;
        Ok(usize::from_ne_bytes(word))
    }

    /// Writes one native word, in the machine's byte order.
    #[inline]
    fn write_usize(&self, addr: usize, word: usize) -> Result<(), MemFault> {
        self.write(addr, &word.to_ne_bytes())
    }
}

/// An access that [`Memory`] could not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemFault {
    /// The first address of the access.
    pub addr: usize,
    /// Whether it was a read or a write.
    pub access: Access,
}

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
}

/// The text around a place, as it would read if no probe were planted anywhere.
pub trait Text {
    /// Copies pristine text from `at` into `out` and returns how many bytes could be read (fewer than
    /// `out.len()` where readable memory ends).
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize;
}

/// One place to be decoded: where it is and what surrounds it.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The address of the instruction; its boundary has been checked.
    pub at: CodeAddr,
    /// The function that covers it, first byte to one past the last, where a symbol does.
    pub function: Option<(CodeAddr, CodeAddr)>,
    /// The text, without anybody's breakpoints of ours.
    pub text: &'a dyn Text,
}

/// What a backend has decided about an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<P> {
    /// The backend's own description, kept in the point: 16 bytes or less.
    pub plan: P,
    /// The length of the instruction in bytes.
    pub len_bytes: u8,
    /// How the instruction is executed at a hit.
    pub method: Method,
}

/// How the original instruction of a place is executed at a hit, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Its effect on the registers (and the stack) is computed: one trap.
    Simulate,
    /// It may run in a slot that ends with a jump back: one trap, when nobody wants a post handler. With a
    /// post handler the slot ends with a breakpoint.
    Boost,
    /// It runs in a slot that always ends with a breakpoint, because [`Arch::after_step`] has work to do: two traps.
    Step,
}

/// How a slot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// A breakpoint: the core gets control after the instruction.
    Breakpoint,
    /// A jump to the instruction after the place.
    Jump,
}

/// The bytes whose single store switches a filled slot from one [`Tail`] to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailPatch {
    /// Where in the slot, in bytes from its start.
    pub offset: u8,
    /// How many of `bytes` are stored, at once.
    pub len_bytes: u8,
    /// The bytes.
    pub bytes: [u8; 4],
}

/// The most instructions that the jump of an optimised probe displaces.
pub const MAX_DISPLACED: usize = 5;

/// The instructions that the jump of an optimised probe displaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Displaced {
    /// How many bytes they are, with padding that the jump covers too.
    pub len_bytes: u8,
    count: u8,
    starts: [u8; MAX_DISPLACED],
}

impl Displaced {
    /// Adds the next instruction; `None` where there are too many.
    pub fn push(&mut self, len_bytes: u8) -> Option<()> {
        *self.starts.get_mut(usize::from(self.count))? = self.len_bytes;
        self.count += 1;
        self.len_bytes = self.len_bytes.checked_add(len_bytes)?;
        Some(())
    }

    /// Where each of them starts, in bytes from the place.
    pub fn starts(&self) -> impl Iterator<Item = usize> {
        self.starts.into_iter().take(usize::from(self.count)).map(usize::from)
    }
}

/// Where things are in a detour, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetourLayout {
    /// The copies of the displaced instructions, in their order.
    pub copies: [u8; MAX_DISPLACED],
    /// The jump back, or one past the last copy.
    pub back: u8,
    /// Its length.
    pub len_bytes: u8,
}

/// Where return probes find and change the return address of the call that has just entered a function.
///
/// `frame` identifies the call: the address of the return address on the stack (x86), or the stack pointer
/// at entry (link-register architectures).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The return address.
    pub return_address: CodeAddr,
    /// The identity of the call.
    pub frame: usize,
}

/// A backend: an instruction set and its ABI.
///
/// All functions are pure. An implementor is an uninhabited type, `pub enum Aarch64 {}`.
///
/// # Safety
/// The core writes what these functions return into executable memory and resumes contexts with the
/// registers they leave. An implementation promises that a filled slot has exactly the effect of the
/// original instruction, and then traps at, or jumps from, the offset that [`Arch::tail`] names.
pub unsafe trait Arch: Sized + 'static {
    /// The saved registers.
    type Regs: Regs;
    /// The decoded instruction: what is needed to simulate it or to build its slot. At most 16 bytes.
    type Plan: Copy + fmt::Debug + PartialEq + Send + Sync + 'static;
    /// What [`Arch::before_step`] keeps for [`Arch::after_step`] (a borrowed register, say).
    ///
    /// The default value means "nothing was borrowed": it is what [`Arch::after_step`] and [`Arch::abort_step`] get for
    /// a [`Method::Boost`] instruction, for a system call ([`Arch::is_system_call`]), and, if the plan does not
    /// [keep state](Arch::keeps_state), at hits nested deeper than [`MAX_DEPTH`](crate::MAX_DEPTH).
    type StepState: Copy + Default + Send + Sync + 'static;

    /// The architecture's name as users write it: `x86_64`, `aarch64`, …
    const NAME: &'static str;
    /// The breakpoint instruction, as it lies in memory. At most 4 bytes, stored at once.
    const BREAKPOINT: &'static [u8];
    /// Instructions start at multiples of this, in bytes.
    const INSN_ALIGN: usize;
    /// The longest instruction, in bytes.
    const MAX_INSN_LEN: usize;
    /// The size of a slot in bytes: a power of two, at most 32, of which the last `size_of::<usize>()` bytes
    /// belong to the core (it keeps the place's address there).
    const SLOT_LEN: usize;
    /// How far from its place a slot may lie, in bytes.
    const SLOT_REACH: usize;
    /// The size of a return stub in bytes.
    const STUB_LEN: usize;
    /// How many bytes below the interrupted stack pointer simulated instructions and the arguments of a jprobe's handler may
    /// take: what a trap frame on the same stack has to leave free there.
    const TRAP_GAP: usize;

    // ---- decoding -------------------------------------------------------------------------------------------

    /// The length in bytes of the instruction that `bytes` starts with, or `None` where it cannot be told.
    ///
    /// Used to walk from a function's start to a place. `bytes` holds [`Arch::MAX_INSN_LEN`] bytes, or fewer at
    /// the end of readable text.
    fn insn_len(bytes: &[u8]) -> Option<usize>;

    /// Whether any breakpoint instruction, ours or somebody else's, stands at the start of `bytes`.
    fn is_breakpoint(bytes: &[u8]) -> bool;

    /// Decides how the instruction at a place is executed, or why it cannot be probed.
    ///
    /// # Errors
    /// A [`Refusal`] names the instruction class and the rule.
    fn decode(site: &Site<'_>) -> Result<Decoded<Self::Plan>, Refusal>;

    /// The number of bytes between a function's symbol and the first place that every caller runs through:
    /// past ENDBR on x86, the local entry on ppc64 ELFv2; 0 elsewhere.
    ///
    /// `local_entry` is what the symbol table says about it ([`Symbol::local_entry`](crate::host::Symbol)).
    /// Every offset from 0 up to and including the result is "at the function's entry"; for return probes, up to
    /// [`Arch::entry_end`].
    fn entry_offset(text: &dyn Text, function: CodeAddr, local_entry: u8) -> usize;

    /// The number of bytes between a function's symbol and the last place that still is "at its entry" for return probes and
    /// jprobes (REG_17), which are set at [`Arch::entry_offset`] all the same: behind what signs the return address on aarch64.
    fn entry_end(text: &dyn Text, function: CodeAddr, local_entry: u8) -> usize {
        Self::entry_offset(text, function, local_entry)
    }

    // ---- executing one instruction ---------------------------------------------------------------------------

    /// The address of the breakpoint that was just hit (x86 saves the address after it).
    fn breakpoint_address(regs: &Self::Regs) -> CodeAddr;

    /// Whether the instruction enters the operating system by its own will (SYSCALL, INT 0x80, SVC, SC).
    ///
    /// It may block for ever, wake twice (fork, clone) or never come back (sigreturn, exit). The core therefore runs it
    /// in its slot without a frame and without [`Host::enter_slot`](crate::host::Host::enter_slot), finishes it by
    /// the slot's address alone, and never gives the slot to another place. Its method is [`Method::Step`] or
    /// [`Method::Boost`], and [`Arch::before_step`] borrows nothing for it.
    fn is_system_call(plan: &Self::Plan) -> bool;

    /// Whether a [`Method::Step`] instruction needs what [`Arch::before_step`] has kept: `false` only where the default
    /// state does as well. A hit that has no room for it waits for another one's end.
    fn keeps_state(plan: &Self::Plan) -> bool;

    /// Executes the effect of a [`Method::Simulate`] instruction; `regs` has pc = `place`.
    ///
    /// # Errors
    /// The fault that the instruction would have raised. Then neither registers nor memory have changed.
    fn simulate<M: Memory>(
        plan: &Self::Plan,
        place: CodeAddr,
        regs: &mut Self::Regs,
        memory: &M,
    ) -> Result<(), MemFault>;

    /// Builds the out-of-line copy of the instruction `insn` of `place` for a slot at `slot`.
    ///
    /// `out` is [`Arch::SLOT_LEN`] less the core's bytes long; the rest after the tail is filled with
    /// breakpoints.
    ///
    /// # Errors
    /// A [`Refusal`] where the slot is out of reach of what the instruction addresses.
    fn fill_slot(
        plan: &Self::Plan,
        insn: &[u8],
        place: CodeAddr,
        slot: CodeAddr,
        tail: Tail,
        out: &mut [u8],
    ) -> Result<(), Refusal>;

    /// The store that gives the slot of a [`Method::Boost`] instruction the other tail. `None` where the jump
    /// back does not reach; then the slot keeps its breakpoint. Always `Some` for [`Tail::Breakpoint`].
    fn tail(
        plan: &Self::Plan,
        insn_len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        tail: Tail,
    ) -> Option<TailPatch>;

    /// Prepares the registers for running the slot; pc is then the slot's start. Not called for
    /// [`Method::Boost`], which needs nothing but the pc.
    fn before_step(
        plan: &Self::Plan,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut Self::Regs,
    ) -> Self::StepState;

    /// Finishes after the slot's trailing breakpoint: undoes what [`Arch::before_step`] borrowed and sets pc to the
    /// next instruction in the original text. `regs` are as the trailing breakpoint saved them, but for the pc, which
    /// may be the breakpoint's own address (hardware single-step).
    fn after_step(
        plan: &Self::Plan,
        insn_len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut Self::Regs,
        state: &Self::StepState,
    );

    /// Undoes [`Arch::before_step`] when the instruction in the slot has faulted: registers as before it, pc = `place`.
    fn abort_step(plan: &Self::Plan, place: CodeAddr, regs: &mut Self::Regs, state: &Self::StepState);

    // ---- optimised probes: a jump instead of the breakpoint ---------------------------------------------------

    /// How many bytes of text the jump to a detour takes.
    const JUMP_LEN: usize;
    /// The most bytes that a detour takes.
    const DETOUR_LEN: usize;
    /// How far before its entry a detour's memory begins, in bytes.
    const DETOUR_HEADER_LEN: usize;

    /// Finds the instructions that a jump at a place displaces.
    ///
    /// # Errors
    /// A [`Refusal`] says why the place keeps its breakpoint.
    fn displace(site: &Site<'_>) -> Result<Displaced, Refusal>;

    /// Where the instruction at `at`, which `text` starts with, may go directly other than to the next one.
    fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr>;

    /// The lowest address not below `from` where the entry of the detour of `place` may lie, if there is one in reach.
    fn detour_entry(place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr>;

    /// Builds the detour with this entry: it calls `trampoline` ([`NativeArch::detour_trampoline`]), runs the copies of the
    /// displaced instructions and goes on behind them. `text` holds these as they were. The core's words: that of the call,
    /// and that of a second one behind the first copy, if there shall be one; then the first instruction is none of those
    /// that change the control flow.
    ///
    /// # Errors
    /// A [`Refusal`] where it is out of reach of what the instructions address.
    fn fill_detour(
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        trampoline: CodeAddr,
        words: (usize, Option<usize>),
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal>;

    /// The jump from `place` to a detour's entry: [`Arch::JUMP_LEN`] bytes of it count.
    ///
    /// Longer than the breakpoint, it has the breakpoint's bytes wherever a displaced instruction but the first starts.
    fn jump(place: CodeAddr, entry: CodeAddr) -> [u8; 8];

    /// Where the [`Regs`] lie that a detour's trampoline gives to [`NativeArch::detour_resume_trap`]: read from the
    /// registers at that trap.
    fn detour_regs(regs: &Self::Regs) -> usize;

    /// Makes a context that has trapped at [`NativeArch::detour_resume_trap`] go on with `kept`, what lies at
    /// [`Arch::detour_regs`]: all of it but the machine's state that only a trap can tell and change (privilege, translation,
    /// interrupts), where the trampoline cannot save that.
    #[inline]
    fn resume_with(regs: &mut Self::Regs, kept: Self::Regs) {
        *regs = kept;
    }

    // ---- calls -----------------------------------------------------------------------------------------------

    /// The integer argument number `index`, from 0, of the call that has just entered a function.
    fn argument<M: Memory>(regs: &Self::Regs, index: usize, memory: &M) -> Option<usize>;

    /// The ABI's integer return register.
    fn return_value(regs: &Self::Regs) -> usize;

    /// Sets the ABI's integer return register.
    fn set_return_value(regs: &mut Self::Regs, value: usize);

    /// Reads the return address and the frame of the call that has just entered a function.
    ///
    /// # Errors
    /// The stack could not be read.
    fn entry<M: Memory>(regs: &Self::Regs, memory: &M) -> Result<Entry, MemFault>;

    /// Makes the call that has just entered a function return to `to`.
    ///
    /// # Errors
    /// The stack could not be written.
    fn set_return_address<M: Memory>(regs: &mut Self::Regs, to: CodeAddr, memory: &M)
    -> Result<(), MemFault>;

    /// Whether the call with this `frame` may still return to `stub`, judged by what lies on the stack; `sp` is the
    /// context's stack pointer now. `false` only where it certainly will not (its frame was left by a
    /// longjmp or by unwinding).
    fn may_return<M: Memory>(frame: usize, stub: CodeAddr, sp: usize, memory: &M) -> bool;

    /// Fills a chunk of executable memory at `chunk` with return stubs and the veneer that they share, and returns
    /// how many stubs it holds.
    ///
    /// Stub `i` lies at `chunk + i * STUB_LEN`, preceded by at least one byte of the chunk's own for `i == 0`
    /// being looked up by return address minus one; so stub 0 is never handed out. A stub transfers to
    /// `trampoline` ([`NativeArch::return_trampoline`]) and tells it which stub it was and the word `handler`.
    ///
    /// `out` is a power of two less the last `size_of::<usize>()` bytes, which belong to the core; `chunk` is aligned
    /// to that power of two.
    fn fill_stubs(chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize;

    /// Turns the registers of a context at a function's entry into a call of `handler` with copies of the same
    /// arguments, which returns to `return_to`. The caller's argument area is not touched (JMP_2, JMP_3).
    ///
    /// # Errors
    /// The stack could not be read or written; then nothing has changed.
    fn enter_jprobe<M: Memory>(
        regs: &mut Self::Regs,
        handler: usize,
        return_to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault>;
}

/// Which registers a trampoline saves around the handler, beside the general registers and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveSet {
    /// None: the handlers are built without floating point (a kernel).
    General,
    /// All floating-point and vector state that the ABI can return in or a handler can clobber (a process).
    Full,
}

/// How a context goes on from a trampoline, which has called the core with the registers that it has saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Resume {
    /// Behind the call, with the same registers: none has been changed but, perhaps, the link register and those that every
    /// call may change. So a register that calls preserve need not be restored.
    Unchanged = 0,
    /// The same with all registers as they are saved now, but for pc and the stack pointer.
    Changed = 1,
    /// The stack pointer has been changed, too: by way of [`NativeArch::detour_resume_trap`], pc being the first copy.
    Moved = 2,
    /// By way of [`NativeArch::detour_resume_trap`], pc being what was saved.
    Redirected = 3,
    /// Answered to [`NativeArch::entry_trampoline`] alone: as [`Resume::Unchanged`], and the return address is a stub now.
    Followed = 4,
    /// The same as [`Resume::Changed`].
    ChangedFollowed = 5,
}

impl Resume {
    /// After a handler that may have changed registers, if they have been lent to it.
    pub(crate) fn of(is_lent: bool) -> Self {
        if is_lent { Self::Changed } else { Self::Unchanged }
    }
}

/// A function of the core's that trampolines call: with a word, and the registers that they have saved.
pub trait TrampolineHandler<R> {
    /// The function.
    const FUNCTION: extern "C" fn(word: usize, regs: *mut R) -> Resume;
}

/// What must be executed on the architecture itself.
///
/// # Safety
/// [`NativeArch::return_trampoline`] and [`NativeArch::jprobe_return_trap`] return addresses of code that keeps the
/// protocol described there.
pub unsafe trait NativeArch: Arch {
    /// Whether one instruction adds to a word in memory, so that a word that has been loaded is better not kept for that.
    const ADDS_TO_MEMORY: bool = false;

    /// The address of what the trampolines call for `T`: its function, or one that passes arguments on to it, where the
    /// trampolines can pass them in a better way than `extern "C"` does.
    fn handler<T: TrampolineHandler<Self::Regs>>() -> usize {
        T::FUNCTION as usize
    }

    /// The address of the assembly that return stubs lead to. It saves the registers `save` names, calls
    /// the [handler](NativeArch::handler) that was given to [`Arch::fill_stubs`] (with `regs` as at the function's return and the
    /// stub's address as the word), restores what the answer says from `regs`
    /// and goes on at `regs.pc`. It answers [`Resume::Unchanged`] or [`Resume::Changed`], which here means all registers.
    fn return_trampoline(save: SaveSet) -> CodeAddr;

    /// The address of a breakpoint instruction in the backend's own text: where a jprobe handler returns to.
    /// [`Arch::breakpoint_address`] of that trap is this address.
    fn jprobe_return_trap() -> CodeAddr;

    /// The address of the assembly that detours call. It saves the registers `save` names, calls the function that the
    /// detour's word points to (the word is the address of a structure whose first word is a [handler](NativeArch::handler), and whose
    /// second one is the place: `regs` are as there), and does what it answers.
    fn detour_trampoline(save: SaveSet) -> CodeAddr;

    /// The same for the detour of a function whose calls are followed, where that can be done better: so that the processor predicts
    /// the function's return to its stub. It knows [`Resume::Followed`], too. `None`: it cannot.
    fn entry_trampoline(_save: SaveSet) -> Option<CodeAddr> {
        None
    }

    /// [`Arch::fill_detour`] for [`NativeArch::entry_trampoline`].
    ///
    /// # Errors
    /// As there.
    fn fill_entry_detour(
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        trampoline: CodeAddr,
        words: (usize, Option<usize>),
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        Self::fill_detour(displaced, text, place, entry, trampoline, words, out)
    }

    /// [`Arch::fill_stubs`] for the machine that this runs on.
    fn fill_return_stubs(chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
        Self::fill_stubs(chunk, trampoline, handler, out)
    }

    /// The address of a breakpoint instruction in the trampolines: the context goes on with the `Regs` that
    /// [`Arch::detour_regs`] names, all of them. [`Arch::breakpoint_address`] of that trap is this address.
    fn detour_resume_trap() -> CodeAddr;

    /// Keeps the compiler from moving accesses to memory across this point, as far as code that interrupts this context
    /// can see. On the hit path; no instruction: a backend for which the default becomes one has its own.
    #[inline(always)]
    fn program_order() {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }

    /// Makes `len_bytes` bytes of text just written at `at` visible to instruction fetch on this core, as the
    /// architecture's rules on self-modifying code ask (nothing on x86).
    ///
    /// # Safety
    /// The range is mapped and readable.
    unsafe fn publish(at: CodeAddr, len_bytes: usize);
}
