//! The instruction set as the core sees it: the traits that a backend implements.
//!
//! | trait | what it is for | a first port |
//! |---|---|---|
//! | [`Arch`], [`NativeArch`] | kprobes by a breakpoint: decoding, simulation, slots | needs it |
//! | [`Calls`], [`NativeCalls`] | return probes, jprobes, arguments | says [`NoCalls`] |
//! | [`Jumps`], [`NativeJumps`] | a jump instead of the breakpoint | says [`NoJumps`] |
//! | [`SingleStep`] | slots stepped by the processor | leaves it out |
//!
//! A backend turns bytes into decisions ([`Arch::decode`]) and registers into registers ([`Arch::simulate`]).
//! It knows no registry, no process and no kernel. [`Arch`], [`Calls`] and [`Jumps`] are pure: they build and
//! are tested on every machine. The few things that must be executed on the architecture itself (trampolines,
//! cache maintenance) are in the native traits.

mod calls;
mod jumps;
mod native;
mod step;

pub use calls::{Calls, Entry, NativeCalls, NoCalls, Returns};
pub use jumps::{DetourCalls, DetourLayout, Displaced, Jumps, MAX_DISPLACED, NativeJumps, NoJumps};
pub use native::{NativeArch, Resume, SaveSet, TrampolineHandler};
pub use step::SingleStep;

use crate::addr::CodeAddr;
use crate::error::Refusal;
use core::fmt;

/// The registers of an interrupted context, laid out by the backend (Linux: `struct pt_regs`).
///
/// Plain data: every bit pattern is valid. A kernel whose trap frame has this layout passes the frame itself.
pub trait Regs: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The program counter, as an address of code ([`Arch::first_byte`]).
    fn pc(&self) -> CodeAddr;
    /// Sets the program counter.
    fn set_pc(&mut self, pc: CodeAddr);
    /// The stack pointer.
    fn sp(&self) -> usize;

    /// The registers' names in the order of their numbers, as tracing tools spell them (`di`, `rdi`, `x0`,
    /// `r3`, `gpr3`).
    ///
    /// A register with several names is listed once for each. By default there are none, and tools can name
    /// no register.
    fn names() -> &'static [(&'static str, usize)] {
        &[]
    }
    /// The value of register number `index`, or `None` where there is no such register.
    fn register(&self, index: usize) -> Option<usize> {
        let _ = index;
        None
    }
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
    /// Copies pristine text from the instruction at `at` on into `out` and returns how many bytes could be
    /// read (fewer than `out.len()` where readable memory ends).
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize;
}

/// One place to be decoded: where it is and what surrounds it.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The address of the instruction; its boundary has been checked.
    pub at: CodeAddr,
    /// The function that covers it, first byte to one past the last, if a symbol covers it.
    pub function: Option<(CodeAddr, CodeAddr)>,
    /// The text, without our breakpoints and jumps.
    pub text: &'a dyn Text,
}

/// A backend's decision about an instruction.
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
    /// It may run in a slot that ends with a jump back: one trap, if no probe there has a post handler. With
    /// a post handler the slot ends with a breakpoint: two traps.
    Boost,
    /// It runs in a slot that always ends with a breakpoint, because [`Arch::after_step`] has work to do: two
    /// traps.
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

/// A backend: an instruction set, as far as a kprobe with a breakpoint needs it. A first port has to write
/// six functions.
///
/// All functions are pure. An implementor is a unit type, `pub struct Aarch64;`. Its value is also the proof
/// of the optional powers that it implements: `type Calls = Self; const CALLS: Option<Self> = Some(Self);`.
///
/// # Safety
/// The core writes what these functions return into executable memory and resumes contexts with the registers
/// that they leave. An implementation promises that a filled slot has exactly the effect of the original
/// instruction, and then traps at, or jumps from, the offset that [`Arch::tail`] names.
pub unsafe trait Arch: Sized + 'static {
    /// The saved registers.
    type Regs: Regs;
    /// The decoded instruction: what is needed to simulate it or to build its slot. At most 16 bytes.
    type Plan: Copy + fmt::Debug + PartialEq + Send + Sync + 'static;
    /// What [`Arch::before_step`] keeps for [`Arch::after_step`], such as the value of a borrowed register.
    ///
    /// The default value means "nothing was borrowed". [`Arch::after_step`] and [`Arch::abort_step`] get it
    /// for a [`Method::Boost`] instruction, for a system call ([`Arch::is_system_call`]), and, if the plan
    /// does not [keep state](Arch::keeps_state), at hits nested deeper than
    /// [`MAX_DEPTH`](crate::limits::MAX_DEPTH).
    type StepState: Copy + Default + Send + Sync + 'static;
    /// The calling convention: `Self`; or [`NoCalls`], with which return probes and jprobes are refused.
    type Calls: Calls<Self::Regs>;
    /// Jumps instead of breakpoints: `Self`; or [`NoJumps`], with which every probe keeps its breakpoint.
    type Jumps: Jumps<Self::Regs>;

    /// The power of calls, if the backend has it.
    const CALLS: Option<Self::Calls>;
    /// The power of jumps, if the backend has it.
    const JUMPS: Option<Self::Jumps>;

    /// The architecture's name as users write it: `x86_64`, `aarch64`, …
    const NAME: &'static str;
    /// The breakpoint instruction, as it lies in memory. At most 4 bytes, stored at once. Where there are
    /// several ([`Arch::breakpoint`]), the longest.
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
    /// The bytes below the interrupted stack pointer that a trap frame on the same stack has to leave free:
    /// simulated instructions and the arguments of a jprobe's handler are written there.
    const TRAP_GAP: usize;

    // ---- addresses of code --------------------------------------------------------------------------------

    /// The address in memory of the first byte of the instruction at `at`.
    ///
    /// It differs from `at` where addresses of code say which instruction set is meant (arm: bit 0, as in
    /// symbols, function pointers and return addresses). Then [`Regs::pc`] and [`Regs::set_pc`] are such
    /// addresses, too, and [`Arch::breakpoint`] and [`Arch::same_set`] have to be written.
    #[inline(always)]
    fn first_byte(at: CodeAddr) -> CodeAddr {
        at
    }

    /// The address of the code at `memory`, of the same instruction set as the code at `like`.
    #[inline(always)]
    fn same_set(memory: CodeAddr, like: CodeAddr) -> CodeAddr {
        let _ = like;
        memory
    }

    /// The breakpoint for a place at `at`.
    #[inline(always)]
    fn breakpoint(at: CodeAddr) -> &'static [u8] {
        let _ = at;
        Self::BREAKPOINT
    }

    // ---- decoding -----------------------------------------------------------------------------------------

    /// The length in bytes of the instruction at `at` that `bytes` starts with, or `None` where it cannot be
    /// told.
    ///
    /// Used to walk from a function's start to a place. `bytes` holds [`Arch::MAX_INSN_LEN`] bytes, or fewer
    /// at the end of readable text.
    fn insn_len(at: CodeAddr, bytes: &[u8]) -> Option<usize>;

    /// How many bytes behind the instruction at `site`, which has `insn_len` bytes, are data of the function
    /// that a walk has to step over, as it would lose the boundaries there; 0 where all bytes are
    /// instructions, or all of these have one length.
    #[inline(always)]
    fn data_behind(site: &Site<'_>, insn_len: usize) -> usize {
        let _ = (site, insn_len);
        0
    }

    /// Whether any breakpoint instruction, ours or somebody else's, is at `at`, where `bytes` start.
    fn is_breakpoint(at: CodeAddr, bytes: &[u8]) -> bool;

    /// Decides how the instruction at a place is executed, or why it cannot be probed.
    ///
    /// # Errors
    /// A [`Refusal`] names the instruction class and the rule.
    fn decode(site: &Site<'_>) -> Result<Decoded<Self::Plan>, Refusal>;

    /// The number of bytes between a function's symbol and the first place that every caller runs through:
    /// past ENDBR on x86, the local entry on ppc64 ELFv2; 0 elsewhere.
    ///
    /// `local_entry` is what the symbol table says about it ([`Symbol::local_entry`](crate::host::Symbol)).
    /// Every offset from 0 up to and including the result is "at the function's entry"; for return probes, up
    /// to [`Calls::entry_end`].
    fn entry_offset(text: &dyn Text, function: CodeAddr, local_entry: u8) -> usize {
        let _ = (text, function, local_entry);
        0
    }

    // ---- executing one instruction ------------------------------------------------------------------------

    /// The address of the breakpoint that was just hit: the saved pc, or the place derived from it (x86 saves
    /// the address behind the breakpoint).
    #[inline]
    fn breakpoint_address(regs: &Self::Regs) -> CodeAddr {
        regs.pc()
    }

    /// Whether the instruction enters the operating system deliberately (SYSCALL, INT 0x80, SVC, SC).
    ///
    /// It may block for ever, wake twice (fork, clone) or never come back (sigreturn, exit). The core
    /// therefore runs it in its slot without a frame and without
    /// [`Host::enter_slot`](crate::host::Host::enter_slot), finishes it by the slot's address alone, and
    /// never gives the slot to another place. Its method is [`Method::Step`] or [`Method::Boost`], and
    /// [`Arch::before_step`] borrows nothing for it.
    fn is_system_call(plan: &Self::Plan) -> bool;

    /// Whether a [`Method::Step`] instruction needs the state that [`Arch::before_step`] has kept: `false`
    /// only if the default state does as well. A hit without room for the state waits for the end of another
    /// one.
    fn keeps_state(plan: &Self::Plan) -> bool {
        let _ = plan;
        size_of::<Self::StepState>() != 0
    }

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

    /// The store that gives the slot of a [`Method::Boost`] instruction the other tail. `None` if the jump
    /// back does not reach; then the slot keeps its breakpoint. Always `Some` for [`Tail::Breakpoint`],
    /// except from a backend that never writes [`Tail::Jump`].
    fn tail(
        plan: &Self::Plan,
        insn_len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        tail: Tail,
    ) -> Option<TailPatch> {
        let _ = (plan, insn_len, place, slot, tail);
        None
    }

    /// Prepares the registers for running the slot; pc is then the slot's start. Not called for
    /// [`Method::Boost`], which needs only the pc. By default, nothing is borrowed.
    #[inline]
    fn before_step(
        plan: &Self::Plan,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut Self::Regs,
    ) -> Self::StepState {
        let _ = (plan, place);
        regs.set_pc(slot);
        Self::StepState::default()
    }

    /// Finishes after the slot's trailing breakpoint: undoes what [`Arch::before_step`] borrowed and sets pc
    /// to the next instruction in the original text. `regs` are as the trailing breakpoint saved them, except
    /// that pc may be the breakpoint's own address (hardware single-step). The default only sets pc, which is
    /// right for instructions whose copies neither read nor write it.
    #[inline]
    fn after_step(
        plan: &Self::Plan,
        insn_len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut Self::Regs,
        state: &Self::StepState,
    ) {
        let _ = (plan, slot, state);
        regs.set_pc(place.wrapping_add(insn_len));
    }

    /// Undoes [`Arch::before_step`] when the instruction in the slot has faulted: registers as before it, pc
    /// = `place`.
    #[inline]
    fn abort_step(plan: &Self::Plan, place: CodeAddr, regs: &mut Self::Regs, state: &Self::StepState) {
        let _ = (plan, state);
        regs.set_pc(place);
    }
}
