//! The aarch64 backend of probe-core: A64, as the Arm Architecture Reference Manual (DDI 0487 issue J.a) and
//! the 2024 extensions (DDI 0602) describe it.
//!
//! In the order of reading:
//! - [`regs`]: the saved registers, Linux's `struct user_pt_regs`.
//! - `insn`: named encodings, field extractors.
//! - `decode`: words to a [`Plan`] or a refusal; exclusive regions; the allow-list of system instructions.
//! - `simulate`: the effect of branches and of instructions that read the program counter.
//! - `slot`: copies that run out of line.
//! - `call`: arguments, returns, return stubs, jprobes.
//! - `patch`: write order and publication.
//! - `detour`: what the jump of an optimised probe leads to.
//! - `watch`: watchpoints ([`watch`]).
//! - `asm`: trampolines and cache maintenance, the only code that must run on the architecture itself.
//!
//! Breakpoint: `brk #0x4b55`; a trap's saved pc is the place. A host owes two things beside
//! [`Host`](probe_core::host::Host): slots and stubs lie in memory that is not guarded (no PROT_BTI, no GP
//! bit), and no guarded control stack (FEAT_GCS) is enabled.
#![no_std]

#[cfg(test)]
extern crate std;

mod call;
mod decode;
mod detour;
mod insn;
mod patch;
pub mod regs;
mod simulate;
mod slot;
#[cfg(test)]
mod testing;
pub mod watch;

#[cfg(target_arch = "aarch64")]
mod asm;

pub use decode::{BranchKind, Literal, Plan, When, Width};
pub use patch::Lines;
pub use regs::PtRegs;
pub use slot::StepState;

use probe_core::CodeAddr;
use probe_core::arch::{
    Arch, Calls, Decoded, DetourCalls, DetourLayout, Displaced, Entry, Jumps, MemFault, Memory, Method,
    Returns, SingleStep, Site, Tail, TailPatch, Text,
};
use probe_core::error::Refusal;
use regs::{PSTATE_D, PSTATE_SS};

/// The A64 instruction set with the AAPCS64 calling convention.
#[derive(Clone, Copy, Debug)]
pub struct Aarch64;

impl Aarch64 {
    /// Decides about one instruction word alone, without the text around it that [`Arch::decode`] looks at.
    ///
    /// # Errors
    /// As [`Arch::decode`], except for what depends on the neighbours.
    pub fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
        decode::classify(word)
    }
}

// SAFETY: a slot of `slot::fill` holds the original instruction, or one that `decode` has derived from it and
// whose effect `slot::before`, `after` and the sequence itself make the original's; it ends where
// `slot::tail` says. The native tests compare each class with its unprobed execution.
unsafe impl Arch for Aarch64 {
    type Regs = PtRegs;
    type Plan = Plan;
    type StepState = StepState;
    type Calls = Self;
    type Jumps = Self;

    const CALLS: Option<Self> = Some(Self);
    const JUMPS: Option<Self> = Some(Self);
    const NAME: &'static str = "aarch64";
    const BREAKPOINT: &'static [u8] = &insn::breakpoint(insn::PROBE_IMM).to_le_bytes();
    const INSN_ALIGN: usize = 4;
    const MAX_INSN_LEN: usize = 4;
    const SLOT_LEN: usize = slot::LEN;
    const SLOT_REACH: usize = slot::REACH;
    // And up to 15 bytes of alignment.
    const TRAP_GAP: usize = call::ARGUMENT_AREA + 16;

    fn insn_len(_at: CodeAddr, bytes: &[u8]) -> Option<usize> {
        (bytes.len() >= 4).then_some(4)
    }

    fn is_breakpoint(_at: CodeAddr, bytes: &[u8]) -> bool {
        insn::word_at(bytes).is_some_and(|word| insn::BRK.matches(word) || insn::HLT.matches(word))
    }

    fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
        decode::decode(site)
    }

    fn entry_offset(text: &dyn Text, function: CodeAddr, _local_entry: u8) -> usize {
        let mut first = [0; 4];
        let len = text.read(function, &mut first).min(4);
        decode::entry_offset(&first[..len])
    }

    #[inline]
    fn breakpoint_address(regs: &PtRegs) -> CodeAddr {
        CodeAddr::new(regs.pc as usize)
    }

    #[inline]
    fn is_system_call(plan: &Plan) -> bool {
        matches!(plan, Plan::SystemCall)
    }

    fn keeps_state(plan: &Plan) -> bool {
        slot::keeps_state(plan)
    }

    fn simulate<M: Memory>(
        plan: &Plan,
        place: CodeAddr,
        regs: &mut PtRegs,
        memory: &M,
    ) -> Result<(), MemFault> {
        simulate::simulate(plan, place, regs, memory)
    }

    fn fill_slot(
        plan: &Plan,
        insn: &[u8],
        place: CodeAddr,
        slot: CodeAddr,
        tail: Tail,
        out: &mut [u8],
    ) -> Result<(), Refusal> {
        slot::fill(plan, insn, place, slot, tail, out)
    }

    fn tail(plan: &Plan, _insn_len: usize, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
        slot::tail(plan, place, slot, tail)
    }

    #[inline]
    fn before_step(plan: &Plan, _place: CodeAddr, slot: CodeAddr, regs: &mut PtRegs) -> StepState {
        slot::before(plan, slot, regs)
    }

    #[inline]
    fn after_step(
        plan: &Plan,
        _insn_len: usize,
        place: CodeAddr,
        _slot: CodeAddr,
        regs: &mut PtRegs,
        state: &StepState,
    ) {
        slot::after(plan, place, regs, state);
    }

    #[inline]
    fn abort_step(plan: &Plan, place: CodeAddr, regs: &mut PtRegs, state: &StepState) {
        slot::abort(plan, place, regs, state);
    }
}

// SAFETY: the return address is in X30 at entry; the tests of `call` hold the stubs against their layout.
unsafe impl Calls<PtRegs> for Aarch64 {
    const STUB_LEN: usize = call::STUB_LEN;

    fn entry_end(self, text: &dyn Text, function: CodeAddr, _entry_offset: usize) -> usize {
        let mut first = [0; 8];
        let len = text.read(function, &mut first).min(8);
        decode::entry_end(&first[..len])
    }

    fn argument<M: Memory>(self, regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
        call::argument(regs, index, memory)
    }

    #[inline]
    fn return_value(self, regs: &PtRegs) -> usize {
        regs.x[0] as usize
    }

    #[inline]
    fn set_return_value(self, regs: &mut PtRegs, value: usize) {
        regs.x[0] = value as u64;
    }

    /// The return address is X30, before the function has signed it (see the module `call`).
    #[inline]
    fn entry<M: Memory>(self, regs: &PtRegs, _memory: &M) -> Result<Entry, MemFault> {
        Ok(Entry { return_address: CodeAddr::new(regs.x[30] as usize), frame: regs.sp as usize })
    }

    #[inline]
    fn set_return_address<M: Memory>(
        self,
        regs: &mut PtRegs,
        to: CodeAddr,
        _memory: &M,
    ) -> Result<(), MemFault> {
        regs.x[30] = to.as_usize() as u64;
        Ok(())
    }

    fn may_return<M: Memory>(self, frame: usize, stub: CodeAddr, sp: usize, memory: &M) -> bool {
        call::may_return(frame, stub, sp, memory)
    }

    fn returns(self, word: usize, stub: CodeAddr) -> Returns {
        call::returns(word, stub)
    }

    fn fill_stubs(self, _chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
        call::fill_stubs(trampoline, handler, out)
    }

    fn enter_jprobe<M: Memory>(
        self,
        regs: &mut PtRegs,
        handler: usize,
        return_to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault> {
        call::enter_jprobe(regs, handler, return_to, memory)
    }
}

// SAFETY: copies are those of slots; the native tests compare them with the unprobed execution.
unsafe impl Jumps<PtRegs> for Aarch64 {
    const JUMP_LEN: usize = detour::JUMP_LEN;
    const DETOUR_LEN: usize = detour::LEN;
    const DETOUR_HEADER_LEN: usize = detour::HEADER_LEN;

    fn displace(self, site: &Site<'_>) -> Result<Displaced, Refusal> {
        detour::displace(site)
    }

    fn branch_target(self, text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
        detour::branch_target(text, at)
    }

    fn detour_entry(self, place: CodeAddr, _displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
        detour::entry(place, from)
    }

    fn fill_detour(
        self,
        _displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        calls: &DetourCalls,
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        detour::fill(text, place, entry, calls, out)
    }

    fn jump(self, place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
        detour::jump(place, entry)
    }

    fn detour_regs(self, regs: &PtRegs) -> usize {
        regs.x[0] as usize
    }

    fn resume_with(self, regs: &mut PtRegs, kept: PtRegs) {
        let pstate = regs.pstate;
        *regs = kept;
        regs.keep_mode(pstate);
    }
}

// SAFETY: SS and D of PSTATE change. Instructions that read or write D (MRS and MSR DAIF) are refused; SS is
// visible in an SPSR only.
unsafe impl SingleStep for Aarch64 {
    /// The host has set `MDSCR_EL1.SS`, for EL1 also `MDSCR_EL1.KDE`, and runs with PSTATE.D set, so that it
    /// is not stepped itself.
    #[inline]
    fn begin(regs: &mut PtRegs) -> u32 {
        let kept = regs.pstate & (PSTATE_SS | PSTATE_D);
        regs.pstate = regs.pstate & !PSTATE_D | PSTATE_SS;
        kept as u32
    }

    #[inline]
    fn end(regs: &mut PtRegs, kept: u32) {
        regs.pstate = regs.pstate & !(PSTATE_SS | PSTATE_D) | u64::from(kept);
    }
}
