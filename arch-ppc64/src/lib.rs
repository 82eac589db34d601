//! The ppc64 backend of probe-core: Power ISA 3.1C in 64-bit mode, both byte orders, ELFv1 and ELFv2.
//!
//! [`Ppc64`] is generic over byte order and ABI, so that every variant is tested on every machine; [`Native`]
//! is the variant that the program runs on. In the order of reading:
//!
//! - [`regs`]: the saved registers.
//! - `insn`: encodings and opcode tables.
//! - `decode` (and in it `region`, for load-reserve/store-conditional sequences): words to a [`Plan`] or a
//!   refusal.
//! - `simulate`: the effect of branches and of instructions that read or write LR and CTR.
//! - `slot`: copies that run out of line.
//! - `call`: arguments, returns, jprobes, stubs.
//! - `patch`: write order and publication.
//! - `detour`: what the jump of an optimised probe leads to.
//! - `asm`: trampolines, the only code that must run on the architecture itself.
//!
//! Breakpoint: `trap` (`tw 31,0,0`); the trap's nip is the place. A host owes two things beside
//! [`Host`](probe_core::host::Host): `msr` in [`PtRegs`], and a trap entry that keeps 288 bytes below r1
//! free.
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

#[cfg(target_arch = "powerpc64")]
mod asm;

pub use call::{Callee, local_entry_of_st_other};
pub use decode::Plan;
pub use patch::CACHE_STEP;
pub use regs::PtRegs;
pub use slot::Kept;

use core::marker::PhantomData;
use probe_core::CodeAddr;
use probe_core::arch::{
    Arch, Calls, Decoded, DetourCalls, DetourLayout, Displaced, Entry, Jumps, MemFault, Memory, SingleStep,
    Site, Tail, TailPatch, Text,
};
use probe_core::error::Refusal;
use probe_ppc_decode::{Mode, Reason};

mod sealed {
    pub trait Sealed {}
}

/// A byte order of text and data.
pub trait Endian: Mode + sealed::Sealed + 'static {
    /// The architecture's name in this byte order.
    const NAME: &'static str;
    /// `trap`, as it lies in memory.
    const BREAKPOINT: &'static [u8; 4];
    /// An instruction word from memory.
    fn word(bytes: [u8; 4]) -> u32;
    /// An instruction word as it lies in memory.
    fn bytes(word: u32) -> [u8; 4];
    /// A doubleword from memory.
    fn doubleword(bytes: [u8; 8]) -> u64;
    /// A doubleword as it lies in memory.
    fn doubleword_bytes(doubleword: u64) -> [u8; 8];
}

/// Most significant byte first.
#[derive(Clone, Copy, Debug)]
pub enum Big {}

/// Least significant byte first.
#[derive(Clone, Copy, Debug)]
pub enum Little {}

impl sealed::Sealed for Big {}
impl sealed::Sealed for Little {}

impl Mode for Big {
    const IS_64_BIT: bool = true;

    fn insn(bytes: [u8; 4]) -> u32 {
        <Self as Endian>::word(bytes)
    }

    fn insn_bytes(word: u32) -> [u8; 4] {
        <Self as Endian>::bytes(word)
    }

    fn load<M: Memory>(memory: &M, at: usize) -> Result<u64, MemFault> {
        call::load::<Self, M>(memory, at)
    }

    fn refusal(reason: Reason) -> Refusal {
        insn::refusal(reason)
    }
}

impl Endian for Big {
    const NAME: &'static str = "ppc64";
    const BREAKPOINT: &'static [u8; 4] = &insn::TRAP.to_be_bytes();
    fn word(bytes: [u8; 4]) -> u32 {
        u32::from_be_bytes(bytes)
    }
    fn bytes(word: u32) -> [u8; 4] {
        word.to_be_bytes()
    }
    fn doubleword(bytes: [u8; 8]) -> u64 {
        u64::from_be_bytes(bytes)
    }
    fn doubleword_bytes(doubleword: u64) -> [u8; 8] {
        doubleword.to_be_bytes()
    }
}

impl Mode for Little {
    const IS_64_BIT: bool = true;

    fn insn(bytes: [u8; 4]) -> u32 {
        <Self as Endian>::word(bytes)
    }

    fn insn_bytes(word: u32) -> [u8; 4] {
        <Self as Endian>::bytes(word)
    }

    fn load<M: Memory>(memory: &M, at: usize) -> Result<u64, MemFault> {
        call::load::<Self, M>(memory, at)
    }

    fn refusal(reason: Reason) -> Refusal {
        insn::refusal(reason)
    }
}

impl Endian for Little {
    const NAME: &'static str = "ppc64le";
    const BREAKPOINT: &'static [u8; 4] = &insn::TRAP.to_le_bytes();
    fn word(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes)
    }
    fn bytes(word: u32) -> [u8; 4] {
        word.to_le_bytes()
    }
    fn doubleword(bytes: [u8; 8]) -> u64 {
        u64::from_le_bytes(bytes)
    }
    fn doubleword_bytes(doubleword: u64) -> [u8; 8] {
        doubleword.to_le_bytes()
    }
}

/// A calling convention.
pub trait Abi: sealed::Sealed + 'static {
    /// Where the parameter save area starts, in bytes above the caller's stack pointer.
    const PARAMETER_SAVE_AREA: usize;
    /// Whether functions have a local entry behind the global one.
    const HAS_LOCAL_ENTRY: bool;
    /// Finds the code behind the function pointer `function`.
    ///
    /// # Errors
    /// The function descriptor could not be read.
    fn resolve<E: Endian, M: Memory>(function: usize, memory: &M) -> Result<Callee, MemFault>;
}

/// The first ABI: function pointers lead to descriptors of code, TOC and environment.
#[derive(Clone, Copy, Debug)]
pub enum ElfV1 {}

/// The second ABI: function pointers lead to the global entry, which computes the TOC from r12.
#[derive(Clone, Copy, Debug)]
pub enum ElfV2 {}

impl sealed::Sealed for ElfV1 {}
impl sealed::Sealed for ElfV2 {}

impl Abi for ElfV1 {
    const PARAMETER_SAVE_AREA: usize = 48;
    const HAS_LOCAL_ENTRY: bool = false;

    fn resolve<E: Endian, M: Memory>(function: usize, memory: &M) -> Result<Callee, MemFault> {
        let word = |n: usize| call::load::<E, M>(memory, function.wrapping_add(n * 8));
        Ok(Callee { code: word(0)?, toc: Some(word(1)?), environment: Some(word(2)?) })
    }
}

impl Abi for ElfV2 {
    const PARAMETER_SAVE_AREA: usize = 32;
    const HAS_LOCAL_ENTRY: bool = true;

    fn resolve<E: Endian, M: Memory>(function: usize, _: &M) -> Result<Callee, MemFault> {
        Ok(Callee { code: function as u64, toc: None, environment: None })
    }
}

/// The backend for byte order `E` and ABI `A`.
pub struct Ppc64<E, A>(PhantomData<fn() -> (E, A)>);

impl<E, A> Ppc64<E, A> {
    /// The only value.
    pub const NEW: Self = Self(PhantomData);
}

impl<E, A> Clone for Ppc64<E, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, A> Copy for Ppc64<E, A> {}

/// The byte order of the machine that this is compiled for.
#[cfg(target_endian = "big")]
pub type NativeEndian = Big;
/// The byte order of the machine that this is compiled for.
#[cfg(target_endian = "little")]
pub type NativeEndian = Little;

/// The ABI of the program that this is compiled for (on other architectures: ELFv2).
#[cfg(target_abi = "elfv1")]
pub type NativeAbi = ElfV1;
/// The ABI of the program that this is compiled for (on other architectures: ELFv2).
#[cfg(not(target_abi = "elfv1"))]
pub type NativeAbi = ElfV2;

/// The variant that this is compiled for.
pub type Native = Ppc64<NativeEndian, NativeAbi>;

// SAFETY: `slot::fill` copies the instruction (with a displacement that addresses the same bytes) and puts
// the tail that `slot::tail` names right behind it; what a copy does differently, `slot::after_step` sets
// right. The differential tests in tests/native.rs hold it against execution in place.
unsafe impl<E: Endian, A: Abi> Arch for Ppc64<E, A> {
    type Regs = PtRegs;
    type Plan = Plan;
    type StepState = Kept;
    type Calls = Self;
    type Jumps = Self;

    const CALLS: Option<Self> = Some(Self::NEW);
    const JUMPS: Option<Self> = Some(Self::NEW);
    const NAME: &'static str = E::NAME;
    const BREAKPOINT: &'static [u8] = E::BREAKPOINT;
    const INSN_ALIGN: usize = 4;
    const MAX_INSN_LEN: usize = 8;
    const SLOT_LEN: usize = slot::LEN;
    const SLOT_REACH: usize = slot::REACH;
    const TRAP_GAP: usize = call::lowered_by::<A>();

    fn insn_len(_at: CodeAddr, bytes: &[u8]) -> Option<usize> {
        let word = E::word(*bytes.first_chunk()?);
        Some(if insn::opcd(word) == insn::OP_PREFIX { 8 } else { 4 })
    }

    fn is_breakpoint(_at: CodeAddr, bytes: &[u8]) -> bool {
        bytes.first_chunk().is_some_and(|bytes| insn::is_unconditional_trap(E::word(*bytes)))
    }

    fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
        decode::decode::<E>(site)
    }

    fn entry_offset(text: &dyn Text, function: CodeAddr, local_entry: u8) -> usize {
        call::entry_offset::<E, A>(text, function, local_entry)
    }

    fn breakpoint_address(regs: &PtRegs) -> CodeAddr {
        CodeAddr::new(regs.nip as usize)
    }

    fn is_system_call(plan: &Plan) -> bool {
        matches!(plan, Plan::Sc | Plan::Scv)
    }

    fn keeps_state(plan: &Plan) -> bool {
        matches!(plan, Plan::Bctar(_) | Plan::Mfmsr(_))
    }

    fn simulate<M: Memory>(plan: &Plan, place: CodeAddr, regs: &mut PtRegs, _: &M) -> Result<(), MemFault> {
        regs.nip = place.as_usize() as u64;
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
        slot::fill::<E>(plan, insn, place, slot, tail, out)
    }

    fn tail(plan: &Plan, insn_len: usize, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
        slot::tail::<E>(plan, insn_len, place, slot, tail)
    }

    fn before_step(plan: &Plan, _: CodeAddr, slot: CodeAddr, regs: &mut PtRegs) -> Kept {
        slot::before_step(plan, slot, regs)
    }

    fn after_step(
        plan: &Plan,
        insn_len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut PtRegs,
        state: &Kept,
    ) {
        slot::after_step(plan, insn_len, place, slot, regs, *state);
    }

    fn abort_step(_: &Plan, place: CodeAddr, regs: &mut PtRegs, _: &Kept) {
        slot::abort_step(place, regs);
    }
}

// SAFETY: the return address is in LR at entry; the tests of `call` hold the stubs against their layout.
unsafe impl<E: Endian, A: Abi> Calls<PtRegs> for Ppc64<E, A> {
    const STUB_LEN: usize = call::STUB_LEN;

    fn argument<M: Memory>(self, regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
        call::argument::<E, A, M>(regs, index, memory)
    }

    fn return_value(self, regs: &PtRegs) -> usize {
        regs.gpr[3] as usize
    }

    fn set_return_value(self, regs: &mut PtRegs, value: usize) {
        regs.gpr[3] = value as u64;
    }

    fn entry<M: Memory>(self, regs: &PtRegs, _: &M) -> Result<Entry, MemFault> {
        Ok(call::entry(regs))
    }

    fn set_return_address<M: Memory>(self, regs: &mut PtRegs, to: CodeAddr, _: &M) -> Result<(), MemFault> {
        regs.link = to.as_usize() as u64;
        Ok(())
    }

    fn may_return<M: Memory>(self, frame: usize, stub: CodeAddr, sp: usize, memory: &M) -> bool {
        call::may_return::<E, M>(frame, stub, sp, memory)
    }

    fn fill_stubs(self, _: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
        call::fill_stubs::<E>(trampoline, handler, out)
    }

    fn enter_jprobe<M: Memory>(
        self,
        regs: &mut PtRegs,
        handler: usize,
        return_to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault> {
        call::enter_jprobe::<E, A, M>(regs, handler, return_to, memory)
    }
}

// SAFETY: copies are those of slots; the native tests compare them with the unprobed execution.
unsafe impl<E: Endian, A: Abi> Jumps<PtRegs> for Ppc64<E, A> {
    const JUMP_LEN: usize = detour::JUMP_LEN;
    const DETOUR_LEN: usize = detour::LEN;
    const DETOUR_HEADER_LEN: usize = detour::HEADER_LEN;

    fn displace(self, site: &Site<'_>) -> Result<Displaced, Refusal> {
        detour::displace::<E>(site)
    }

    fn branch_target(self, text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
        detour::branch_target::<E>(text, at)
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
        detour::fill::<E>(text, place, entry, calls, out)
    }

    fn jump(self, place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
        detour::jump::<E>(place, entry)
    }

    fn detour_regs(self, regs: &PtRegs) -> usize {
        regs.gpr[3] as usize
    }

    // The MSR that the trampoline shows says no more than that addresses have 64 bits.
    fn resume_with(self, regs: &mut PtRegs, kept: PtRegs) {
        *regs = PtRegs { msr: regs.msr, ..kept };
    }
}

// SAFETY: only MSR[SE] changes. Writes to the MSR are refused, and what `mfmsr` reads is set right.
unsafe impl<E: Endian, A: Abi> SingleStep for Ppc64<E, A> {
    fn begin(regs: &mut PtRegs) -> u32 {
        let kept = regs.msr & regs::MSR_SE;
        regs.msr |= regs::MSR_SE;
        kept as u32
    }

    fn end(regs: &mut PtRegs, kept: u32) {
        regs.msr = regs.msr & !regs::MSR_SE | u64::from(kept);
    }
}
