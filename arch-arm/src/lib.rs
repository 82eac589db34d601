//! The arm backend of probe-core: A32 and T32 of ARMv7-A with VFP and Advanced SIMD, as the ARM Architecture
//! Reference Manual describes them (ARMv7-A and ARMv7-R edition, DDI 0406C.d), and what ARMv8 adds to them in
//! AArch32 (DDI 0487).
//!
//! In the order of reading:
//! - [`regs`]: the saved registers, Linux's `struct pt_regs`.
//! - `insn`: named encodings, field extractors.
//! - `decode`: words of A32 and halfwords of T32 to a [`Plan`] or a refusal; IT blocks; the regions of LDREX
//!   and STREX; the allow-lists.
//! - `simulate`: the effect of what reads or writes the program counter, and of IT.
//! - `slot`: copies that run out of line.
//! - `call`: arguments, returns, return stubs, jprobes.
//! - `patch`: write order and publication.
//! - `detour`: what the jump of an optimised probe leads to.
//! - `asm`: trampolines and cache maintenance, the only code that must run on the architecture itself.
//!
//! **Addresses.** Bit 0 of an address of code says that it is T32, as in symbols, function pointers and
//! return addresses, and as Linux's kprobes have it. A place in a T32 function without it is refused as the
//! middle of an instruction.
//!
//! **Conditions.** A hit is one arrival at the instruction: one whose condition does not hold counts, and its
//! handlers run, before the instruction does nothing. (Linux's kprobes leave both out.) A handler sees the
//! condition's flags, and the state of an IT block ([`PtRegs::it_state`]).
//!
//! Breakpoint: BKPT in either set; a trap's saved program counter is the place. What a host owes beside
//! [`Host`](probe_core::host::Host): little-endian data (CPSR.E clear) and ARMv7 or later.
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

#[cfg(target_arch = "arm")]
mod asm;

pub use decode::{Access, Addressing, Condition, Offset, Operand, Plan, Shift};
pub use insn::Set;
pub use regs::PtRegs;
pub use slot::StepState;

use probe_core::CodeAddr;
use probe_core::arch::{
    Arch, Calls, Decoded, DetourCalls, DetourLayout, Displaced, Entry, Jumps, MemFault, Memory, Method, Regs,
    Site, Tail, TailPatch,
};
use probe_core::error::Refusal;
use regs::{CPSR_APPLICATION, LR};

/// The A32 and T32 instruction sets with the AAPCS32 calling convention.
#[derive(Clone, Copy, Debug)]
pub struct Arm;

impl Arm {
    /// Decides about one instruction alone, without the text around it that [`Arch::decode`] looks at. A T32
    /// instruction of two bytes is the lower half of `word`; of one of four bytes the first halfword is the
    /// upper half.
    ///
    /// # Errors
    /// As [`Arch::decode`], except for what depends on the neighbours.
    pub fn classify(set: Set, word: u32) -> Result<(Plan, Method), Refusal> {
        decode::classify(set, word)
    }

    /// Whether the condition holds that the IT block has for the next instruction; outside of one it does.
    #[must_use]
    pub const fn it_condition_holds(regs: &PtRegs) -> bool {
        let state = regs.it_state();
        state == 0 || simulate::holds(Condition(state >> 4), regs.cpsr)
    }

    /// Where the instruction that `bytes` starts with, at `at`, may branch directly within its instruction
    /// set, and whether control may go on behind it.
    #[must_use]
    pub fn direct_branch(at: CodeAddr, bytes: &[u8]) -> Option<(CodeAddr, bool)> {
        let set = Set::of(at);
        decode::direct_branch(set, insn::word_at(set, bytes)?, at)
    }
}

// SAFETY: a slot of `slot::fill` holds the original instruction, which `decode` lets run only where its
// effect does not depend on its address, or one that reads a register instead, which `slot::before` sets; it
// ends where `slot::tail` says. The native tests compare each vector with its unprobed execution.
unsafe impl Arch for Arm {
    type Regs = PtRegs;
    type Plan = Plan;
    type StepState = StepState;
    type Calls = Self;
    type Jumps = Self;

    const CALLS: Option<Self> = Some(Self);
    const JUMPS: Option<Self> = Some(Self);
    const NAME: &'static str = "arm";
    const BREAKPOINT: &'static [u8] = &insn::BREAKPOINT_A32.to_le_bytes();
    const INSN_ALIGN: usize = 2;
    const MAX_INSN_LEN: usize = 4;
    const SLOT_LEN: usize = slot::LEN;
    const SLOT_REACH: usize = slot::REACH;
    // And up to 7 bytes of alignment. A simulated PUSH needs less.
    const TRAP_GAP: usize = call::ARGUMENT_AREA + 8;

    #[inline]
    fn first_byte(at: CodeAddr) -> CodeAddr {
        CodeAddr::new(at.as_usize() & !1)
    }

    #[inline]
    fn same_set(memory: CodeAddr, like: CodeAddr) -> CodeAddr {
        CodeAddr::new(memory.as_usize() & !1 | like.as_usize() & 1)
    }

    #[inline]
    fn breakpoint(at: CodeAddr) -> &'static [u8] {
        const T32: &[u8] = &insn::BREAKPOINT_T32.to_le_bytes();
        match Set::of(at) {
            Set::A32 => Self::BREAKPOINT,
            Set::T32 => T32,
        }
    }

    fn insn_len(at: CodeAddr, bytes: &[u8]) -> Option<usize> {
        let set = Set::of(at);
        insn::word_at(set, bytes).map(|word| insn::len_bytes(set, word).into())
    }

    fn data_behind(site: &Site<'_>, insn_len: usize) -> usize {
        decode::len_behind(site, insn_len)
    }

    fn is_breakpoint(at: CodeAddr, bytes: &[u8]) -> bool {
        decode::is_breakpoint(Set::of(at), bytes)
    }

    fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
        decode::decode(site)
    }

    #[inline]
    fn is_system_call(plan: &Plan) -> bool {
        matches!(plan, Plan::SystemCall { .. })
    }

    fn keeps_state(plan: &Plan) -> bool {
        matches!(plan, Plan::Borrow)
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

    fn tail(plan: &Plan, insn_len: usize, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
        slot::tail(plan, insn_len, place, slot, tail)
    }

    #[inline]
    fn before_step(plan: &Plan, place: CodeAddr, slot: CodeAddr, regs: &mut PtRegs) -> StepState {
        slot::before(plan, place, slot, regs)
    }

    #[inline]
    fn after_step(
        _plan: &Plan,
        insn_len: usize,
        place: CodeAddr,
        _slot: CodeAddr,
        regs: &mut PtRegs,
        state: &StepState,
    ) {
        slot::after(insn_len, place, regs, state);
    }

    #[inline]
    fn abort_step(_plan: &Plan, place: CodeAddr, regs: &mut PtRegs, state: &StepState) {
        slot::abort(place, regs, state);
    }
}

// SAFETY: the return address is in LR at entry; the tests of `call` hold the stubs against their layout.
unsafe impl Calls<PtRegs> for Arm {
    const STUB_LEN: usize = call::STUB_LEN;

    fn argument<M: Memory>(self, regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
        call::argument(regs, index, memory)
    }

    #[inline]
    fn return_value(self, regs: &PtRegs) -> usize {
        regs.r(0) as usize
    }

    #[inline]
    fn set_return_value(self, regs: &mut PtRegs, value: usize) {
        regs.set_r(0, value as u32);
    }

    #[inline]
    fn entry<M: Memory>(self, regs: &PtRegs, _memory: &M) -> Result<Entry, MemFault> {
        Ok(Entry { return_address: CodeAddr::new(regs.r(LR) as usize), frame: regs.sp() })
    }

    #[inline]
    fn set_return_address<M: Memory>(
        self,
        regs: &mut PtRegs,
        to: CodeAddr,
        _memory: &M,
    ) -> Result<(), MemFault> {
        regs.set_r(LR, to.as_usize() as u32);
        Ok(())
    }

    fn may_return<M: Memory>(self, frame: usize, stub: CodeAddr, sp: usize, memory: &M) -> bool {
        call::may_return(frame, stub, sp, memory)
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

// SAFETY: a detour's copies have the effect of what `detour` takes for displaced; the native tests compare
// them with the unprobed execution. A second displaced instruction starts with a breakpoint: `detour::entry`.
unsafe impl Jumps<PtRegs> for Arm {
    const JUMP_LEN: usize = detour::JUMP_LEN;
    const DETOUR_LEN: usize = detour::LEN;
    const DETOUR_HEADER_LEN: usize = detour::HEADER_LEN;

    fn displace(self, site: &Site<'_>) -> Result<Displaced, Refusal> {
        detour::displace(site)
    }

    fn branch_target(self, text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
        Self::direct_branch(at, text).map(|(target, _)| target)
    }

    fn detour_entry(self, place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
        detour::entry(place, displaced, from)
    }

    fn fill_detour(
        self,
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        calls: &DetourCalls,
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        detour::fill(displaced, text, place, entry, calls, out)
    }

    fn jump(self, place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
        detour::jump(place, entry)
    }

    fn detour_regs(self, regs: &PtRegs) -> usize {
        regs.r(0) as usize
    }

    /// The mode and the masks are the trap's: in a process they cannot be read (B9.3.8).
    fn resume_with(self, regs: &mut PtRegs, kept: PtRegs) {
        let cpsr = regs.cpsr & !CPSR_APPLICATION | kept.cpsr & CPSR_APPLICATION;
        *regs = PtRegs { cpsr, ..kept };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In T32 the breakpoint is a halfword, which touches no neighbour; the word of A32 ends in it.
    #[test]
    fn an_address_says_where_its_bytes_lie_and_how_many_are_a_breakpoint() {
        let (a32, t32) = (CodeAddr::new(0x8004), CodeAddr::new(0x8003));
        assert_eq!((Arm::first_byte(a32), Arm::first_byte(t32)), (a32, CodeAddr::new(0x8002)));
        assert_eq!((Arm::same_set(a32, t32), Arm::same_set(a32, a32)), (CodeAddr::new(0x8005), a32));
        assert_eq!(Arm::breakpoint(a32), [0x7f, 0xbe, 0x2f, 0xe1]);
        assert_eq!(Arm::breakpoint(t32), [0x7f, 0xbe]);
        for at in [a32, t32] {
            assert!(Arm::is_breakpoint(at, Arm::breakpoint(at)));
            assert!(!Arm::is_breakpoint(at, &[0; 4]));
        }
        assert_eq!((Arm::insn_len(a32, &[0; 4]), Arm::insn_len(a32, &[0; 2])), (Some(4), None));
        assert_eq!((Arm::insn_len(t32, &[0; 2]), Arm::insn_len(t32, &[0, 0xf0])), (Some(2), None));
        assert_eq!(Arm::insn_len(t32, &[0, 0xf0, 0, 0xf8]), Some(4));
    }
}
