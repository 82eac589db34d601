//! The ppc32 backend of probe-core: 32-bit big-endian PowerPC, classic and Book E, with the SysV ABI.
//!
//! A façade on [`probe_ppc_decode`], which holds what ppc32 and ppc64 share. In the order of reading:
//! - [`regs`]: the saved registers.
//! - `insn`: encodings and opcode tables; why what is refused is refused.
//! - `decode`: words to a [`Plan`] or a refusal.
//! - `simulate`: the effect of branches and of instructions that read or write LR and CTR.
//! - `slot`: copies that run out of line.
//! - `call`: arguments, returns, jprobes, stubs.
//! - `patch`: write order and publication.
//! - `detour`: why there are no jumps yet.
//! - `asm`: trampolines and publication, the only code that must run on the architecture itself.
//!
//! Breakpoint: `trap` (`tw 31,0,0`); the trap's nip is the place. What a host owes beside
//! [`Host`](probe_core::host::Host): where programs use SPE, the upper halves of r0 to r31.
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
mod vectors;

#[cfg(target_arch = "powerpc")]
mod asm;

pub use decode::Plan;
pub use patch::CACHE_STEP;
pub use regs::PtRegs;

use probe_core::CodeAddr;
use probe_core::arch::{Arch, Calls, Decoded, Entry, MemFault, Memory, NoJumps, Site, Tail, TailPatch};
use probe_core::error::Refusal;
use probe_ppc_decode::{Mode, Reason};
use slot::Kept;

/// 32-bit PowerPC, big endian, with the SysV calling convention.
#[derive(Clone, Copy, Debug)]
pub struct Ppc32;

impl Ppc32 {
    /// Where the direct branch that `text` starts with leads, which lies at `at`.
    #[must_use]
    pub fn direct_branch(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
        insn::branch_target(u32::from_be_bytes(*text.first_chunk()?), at)
    }
}

impl Mode for Ppc32 {
    const IS_64_BIT: bool = false;

    fn insn(bytes: [u8; 4]) -> u32 {
        u32::from_be_bytes(bytes)
    }

    fn insn_bytes(word: u32) -> [u8; 4] {
        word.to_be_bytes()
    }

    fn load<M: Memory>(memory: &M, at: usize) -> Result<u64, MemFault> {
        call::load(memory, at).map(u64::from)
    }

    fn refusal(reason: Reason) -> Refusal {
        insn::refusal(reason)
    }
}

// SAFETY: `slot::fill` copies the instruction and puts the tail that `slot::tail` names right behind it; what
// a copy does differently, `slot::after_step` sets right. The native tests hold it against execution in
// place.
unsafe impl Arch for Ppc32 {
    type Regs = PtRegs;
    type Plan = Plan;
    type StepState = ();
    type Calls = Self;
    type Jumps = NoJumps;

    const CALLS: Option<Self> = Some(Self);
    const JUMPS: Option<NoJumps> = None;
    const NAME: &'static str = "ppc32";
    const BREAKPOINT: &'static [u8] = &insn::TRAP.to_be_bytes();
    const INSN_ALIGN: usize = 4;
    const MAX_INSN_LEN: usize = 4;
    const SLOT_LEN: usize = slot::LEN;
    const SLOT_REACH: usize = slot::REACH;
    const TRAP_GAP: usize = call::LOWERED_BY;

    fn insn_len(_at: CodeAddr, bytes: &[u8]) -> Option<usize> {
        bytes.first_chunk::<4>().map(|_| 4)
    }

    fn is_breakpoint(_at: CodeAddr, bytes: &[u8]) -> bool {
        bytes.first_chunk().is_some_and(|bytes| insn::is_unconditional_trap(u32::from_be_bytes(*bytes)))
    }

    fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
        decode::decode::<Self>(site)
    }

    fn is_system_call(plan: &Plan) -> bool {
        matches!(plan, Plan::Sc)
    }

    fn simulate<M: Memory>(plan: &Plan, place: CodeAddr, regs: &mut PtRegs, _: &M) -> Result<(), MemFault> {
        regs.nip = place.as_usize() as u32;
        simulate::simulate(plan, regs);
        Ok(())
    }

    fn fill_slot(
        plan: &Plan,
        insn: &[u8],
        place: CodeAddr,
        slot: CodeAddr,
        tail: Tail,
        out: &mut [u8],
    ) -> Result<(), Refusal> {
        slot::fill::<Self>(plan, insn, place, slot, tail, out)
    }

    fn tail(plan: &Plan, insn_len: usize, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
        slot::tail::<Self>(plan, insn_len, place, slot, tail)
    }

    fn before_step(plan: &Plan, _: CodeAddr, slot: CodeAddr, regs: &mut PtRegs) {
        slot::before_step(plan, slot, regs);
    }

    fn after_step(plan: &Plan, insn_len: usize, place: CodeAddr, slot: CodeAddr, regs: &mut PtRegs, _: &()) {
        slot::after_step(plan, insn_len, place, slot, regs, Kept::default());
    }

    fn abort_step(_: &Plan, place: CodeAddr, regs: &mut PtRegs, _: &()) {
        slot::abort_step(place, regs);
    }
}

// SAFETY: the return address is in LR at entry; the tests of `call` hold the stubs against their layout.
unsafe impl Calls<PtRegs> for Ppc32 {
    const STUB_LEN: usize = call::STUB_LEN;

    fn argument<M: Memory>(self, regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
        call::argument(regs, index, memory)
    }

    fn return_value(self, regs: &PtRegs) -> usize {
        regs.gpr[3] as usize
    }

    fn set_return_value(self, regs: &mut PtRegs, value: usize) {
        regs.gpr[3] = value as u32;
    }

    fn entry<M: Memory>(self, regs: &PtRegs, _: &M) -> Result<Entry, MemFault> {
        Ok(call::entry(regs))
    }

    fn set_return_address<M: Memory>(self, regs: &mut PtRegs, to: CodeAddr, _: &M) -> Result<(), MemFault> {
        regs.link = to.as_usize() as u32;
        Ok(())
    }

    fn may_return<M: Memory>(self, frame: usize, stub: CodeAddr, sp: usize, memory: &M) -> bool {
        call::may_return::<Self, M>(frame, stub, sp, memory)
    }

    fn fill_stubs(self, _: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
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
