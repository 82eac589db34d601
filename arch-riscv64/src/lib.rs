//! The riscv64 backend of probe-core: RV64GC with Zba, Zbb, Zbs, Zbc, Zbkb, Zbkx, Zkn, Zicond, Zcb, Zfh, Zfa,
//! V, as the RISC-V Instruction Set Manual describes them (Volume I, Unprivileged, 20240411; Volume II,
//! Privileged, 20240411).
//!
//! In the order of reading:
//! - [`regs`]: the saved registers, the beginning of Linux's `struct pt_regs`.
//! - `insn`: named encodings, field extractors.
//! - `decode`: instructions of two and four bytes to a [`Plan`] or a refusal; the regions of LR and SC; the
//!   allow-lists.
//! - `simulate`: the effect of jumps, branches and `auipc`.
//! - `slot`: copies that run out of line.
//! - `call`: arguments, returns, return stubs, jprobes.
//! - `patch`: write order and publication.
//! - `detour`: what the jump of an optimised probe leads to.
//! - `asm`: trampolines and FENCE.I, the only code that must run on the architecture itself.
//!
//! Breakpoint: `c.ebreak`, two bytes, over an instruction of either length; a trap's saved pc is the place.
//! What a host owes beside [`Host`](probe_core::host::Host): the extension C, Ziccif (see `patch`), and
//! neither landing pads (Zicfilp) in the memory of slots and stubs nor a shadow stack (Zicfiss).
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

#[cfg(target_arch = "riscv64")]
mod asm;

pub use decode::{Condition, Plan};
pub use regs::PtRegs;

use probe_core::CodeAddr;
use probe_core::arch::{
    Arch, Calls, Decoded, DetourCalls, DetourLayout, Displaced, Entry, Jumps, MemFault, Memory, Method, Site,
    Tail, TailPatch, Text,
};
use probe_core::error::Refusal;
use regs::{A0, RA, SP};

/// The RV64GC instruction set with the LP64D calling convention.
#[derive(Clone, Copy, Debug)]
pub struct Riscv64;

impl Riscv64 {
    /// Decides about one instruction alone, without the text around it that [`Arch::decode`] looks at. The
    /// upper half of `word` is zero for a compressed one.
    ///
    /// # Errors
    /// As [`Arch::decode`], except for what depends on the neighbours.
    pub fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
        decode::classify(word)
    }
}

// SAFETY: a slot of `slot::fill` holds the original instruction, which `decode` lets run only where its
// effect does not depend on its address; it ends where `slot::tail` says.
unsafe impl Arch for Riscv64 {
    type Regs = PtRegs;
    type Plan = Plan;
    type StepState = ();
    type Calls = Self;
    type Jumps = Self;

    const CALLS: Option<Self> = Some(Self);
    const JUMPS: Option<Self> = Some(Self);
    const NAME: &'static str = "riscv64";
    const BREAKPOINT: &'static [u8] = &insn::BREAKPOINT.to_le_bytes();
    const INSN_ALIGN: usize = 2;
    const MAX_INSN_LEN: usize = 4;
    const SLOT_LEN: usize = slot::LEN;
    const SLOT_REACH: usize = slot::REACH;
    // And up to 15 bytes of alignment.
    const TRAP_GAP: usize = call::ARGUMENT_AREA + 16;

    fn insn_len(_at: CodeAddr, bytes: &[u8]) -> Option<usize> {
        insn::word_at(bytes).map(|word| insn::len_bytes(word).into())
    }

    fn is_breakpoint(_at: CodeAddr, bytes: &[u8]) -> bool {
        insn::word_at(bytes).is_some_and(|word| insn::C_EBREAK.matches(word) || insn::EBREAK.matches(word))
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
    fn is_system_call(plan: &Plan) -> bool {
        matches!(plan, Plan::SystemCall)
    }

    fn simulate<M: Memory>(
        plan: &Plan,
        place: CodeAddr,
        regs: &mut PtRegs,
        _memory: &M,
    ) -> Result<(), MemFault> {
        simulate::simulate(plan, place, regs);
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
        slot::fill(plan, insn, place, slot, tail, out)
    }

    fn tail(plan: &Plan, insn_len: usize, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
        slot::tail(plan, insn_len, place, slot, tail)
    }
}

// SAFETY: the return address is in RA at entry; the tests of `call` hold the stubs against their layout.
unsafe impl Calls<PtRegs> for Riscv64 {
    const STUB_LEN: usize = call::STUB_LEN;

    fn argument<M: Memory>(self, regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
        call::argument(regs, index, memory)
    }

    #[inline]
    fn return_value(self, regs: &PtRegs) -> usize {
        regs.x(A0) as usize
    }

    #[inline]
    fn set_return_value(self, regs: &mut PtRegs, value: usize) {
        regs.set_x(A0, value as u64);
    }

    #[inline]
    fn entry<M: Memory>(self, regs: &PtRegs, _memory: &M) -> Result<Entry, MemFault> {
        Ok(Entry { return_address: CodeAddr::new(regs.x(RA) as usize), frame: regs.x(SP) as usize })
    }

    #[inline]
    fn set_return_address<M: Memory>(
        self,
        regs: &mut PtRegs,
        to: CodeAddr,
        _memory: &M,
    ) -> Result<(), MemFault> {
        regs.set_x(RA, to.as_usize() as u64);
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

// SAFETY: copies are those of slots, or have the effect that `simulate` computes; the native tests compare
// them with the unprobed execution. A second displaced instruction starts with a breakpoint: `detour::entry`.
unsafe impl Jumps<PtRegs> for Riscv64 {
    const JUMP_LEN: usize = detour::JUMP_LEN;
    const DETOUR_LEN: usize = detour::LEN;
    const DETOUR_HEADER_LEN: usize = detour::HEADER_LEN;

    fn displace(self, site: &Site<'_>) -> Result<Displaced, Refusal> {
        detour::displace(site)
    }

    fn branch_target(self, text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
        detour::branch_target(text, at)
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
        regs.x(A0) as usize
    }

    fn resume_with(self, regs: &mut PtRegs, kept: PtRegs) {
        *regs = PtRegs { status: regs.status, ..kept };
    }
}
