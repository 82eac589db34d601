//! The out-of-line copy of an instruction, and what is done before and after it runs.
//!
//! A slot is 32 bytes, of which the last ones belong to the core. It holds, in A32:
//!
//! ```text
//!  0  the instruction
//!  4  BKPT, or B to the next instruction: one aligned word, and both may replace each other (A3.5.4)
//! ```
//! in T32, outside of an IT block:
//!
//! ```text
//!  0  the instruction; NOP behind one of two bytes
//!  4  BKPT, or NOP: one halfword
//!  6  B.W to the next instruction
//! ```
//! and in T32 where an IT block may be, the instruction and then BKPT. There the copy runs under the state of
//! the block that the trap has saved, which the processor moves on by one; a NOP would move it on once more,
//! and B.W would be conditional. BKPT is not, so this slot is right inside and outside of a block.
//!
//! [`Plan::Borrow`] is an instruction of floating point that addresses by the program counter: its copy does
//! so by R0, which [`before`] lends and [`after`] gives back.
//!
//! A slot out of reach of its branch keeps its breakpoint. [`fill`] is called at registration, the rest on
//! the hit path; all pure.

use crate::decode::Plan;
use crate::insn::{self, Set};
use crate::regs::PtRegs;
use crate::simulate;
use probe_core::CodeAddr;
use probe_core::arch::{Regs, Tail, TailPatch};
use probe_core::error::Refusal;

/// The size of a slot.
pub(crate) const LEN: usize = 32;
/// How far from its place a slot may lie: as far as a host may allocate. Hosts give the nearest memory that
/// is free.
pub(crate) const REACH: usize = 1 << 31;
/// Where the tail is behind an instruction that may go on by a branch.
const TAIL: usize = 4;
const NOP: [u8; 2] = [0x00, 0xbf];
const BREAKPOINT_T32: [u8; 2] = insn::BREAKPOINT_T32.to_le_bytes();
const BREAKPOINT_A32: [u8; 4] = insn::BREAKPOINT_A32.to_le_bytes();
/// The register that is lent.
const LENT: u8 = 0;

/// What is kept while an instruction runs in its slot: R0, if it is lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepState(Option<u32>);

/// Builds the slot. Where the branch back does not reach, it gets its breakpoint instead.
pub(crate) fn fill(
    plan: &Plan,
    bytes: &[u8],
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
    out: &mut [u8],
) -> Result<(), Refusal> {
    let set = Set::of(place);
    let word = insn::word_at(set, bytes).ok_or(TRUNCATED)?;
    let len = usize::from(insn::len_bytes(set, word));
    let mut image = [0; LEN];
    match set {
        Set::A32 => image.as_chunks_mut::<4>().0.fill(BREAKPOINT_A32),
        Set::T32 => image.as_chunks_mut::<2>().0.fill(BREAKPOINT_T32),
    }
    let copied =
        if matches!(plan, Plan::Borrow) { word & !(0xf << 16) | u32::from(LENT) << 16 } else { word };
    match (set, len) {
        (Set::A32, _) => image[..4].copy_from_slice(&copied.to_le_bytes()),
        (Set::T32, 2) => image[..2].copy_from_slice(&(copied as u16).to_le_bytes()),
        (Set::T32, _) => {
            image[..2].copy_from_slice(&((copied >> 16) as u16).to_le_bytes());
            image[2..4].copy_from_slice(&(copied as u16).to_le_bytes());
        }
    }
    if let (Set::T32, true) = (set, goes_on(plan)) {
        if len == 2 {
            image[2..4].copy_from_slice(&NOP);
        }
        if let Some(branch) = branch_back(len, place, slot, set) {
            image[6..10].copy_from_slice(&branch);
        }
    }
    let patch = self::tail(plan, len, place, slot, tail)
        .or_else(|| self::tail(plan, len, place, slot, Tail::Breakpoint));
    if let Some(TailPatch { offset, len_bytes, bytes }) = patch {
        image[usize::from(offset)..][..usize::from(len_bytes)]
            .copy_from_slice(&bytes[..usize::from(len_bytes)]);
    }
    let kept = out.len().min(LEN);
    out[..kept].copy_from_slice(&image[..kept]);
    Ok(())
}

/// The store that switches the tail.
pub(crate) fn tail(
    plan: &Plan,
    insn_len: usize,
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
) -> Option<TailPatch> {
    let set = Set::of(place);
    let offset = if set == Set::T32 && !goes_on(plan) { insn_len } else { TAIL };
    let (len_bytes, bytes) = match (tail, set) {
        (Tail::Breakpoint, Set::A32) => (4, BREAKPOINT_A32),
        (Tail::Breakpoint, Set::T32) => (2, [BREAKPOINT_T32[0], BREAKPOINT_T32[1], 0, 0]),
        (Tail::Jump, _) if !goes_on(plan) => return None,
        (Tail::Jump, Set::A32) => (4, branch_back(insn_len, place, slot, set)?),
        (Tail::Jump, Set::T32) => {
            branch_back(insn_len, place, slot, set)?;
            (2, [NOP[0], NOP[1], 0, 0])
        }
    };
    Some(TailPatch { offset: offset as u8, len_bytes, bytes })
}

/// Whether the slot may go on by a branch.
const fn goes_on(plan: &Plan) -> bool {
    matches!(plan, Plan::OutOfLine { may_be_in_it: false } | Plan::SystemCall { may_be_in_it: false })
}

/// The branch from the slot to the instruction behind the place.
fn branch_back(insn_len: usize, place: CodeAddr, slot: CodeAddr, set: Set) -> Option<[u8; 4]> {
    let next = place.wrapping_add(insn_len);
    let distance = |from: usize| {
        // In the address space of 32 bits, which wraps.
        let distance = next.offset_from(slot.wrapping_add(from)) as u32;
        distance.cast_signed() as isize
    };
    // Both addresses say the set, or neither does.
    match set {
        Set::A32 => insn::branch_a32(distance(TAIL)).map(u32::to_le_bytes),
        Set::T32 => insn::branch_t32(distance(TAIL + 2)),
    }
}

/// Prepares `regs` for the slot.
pub(crate) fn before(plan: &Plan, place: CodeAddr, slot: CodeAddr, regs: &mut PtRegs) -> StepState {
    regs.set_pc(slot);
    if !matches!(plan, Plan::Borrow) {
        return StepState(None);
    }
    let kept = regs.r(LENT);
    regs.set_r(LENT, simulate::base(place));
    StepState(Some(kept))
}

/// Finishes after the slot: gives back what is lent, and goes on in the original text.
pub(crate) fn after(insn_len: usize, place: CodeAddr, regs: &mut PtRegs, state: &StepState) {
    if let StepState(Some(kept)) = state {
        regs.set_r(LENT, *kept);
    }
    regs.set_pc(place.wrapping_add(insn_len));
}

/// Undoes everything when the instruction in the slot has faulted.
pub(crate) fn abort(place: CodeAddr, regs: &mut PtRegs, state: &StepState) {
    after(0, place, regs, state);
}

const TRUNCATED: Refusal =
    Refusal::invalid("arm.truncated", "fewer bytes than the instruction has were kept");

#[cfg(test)]
mod tests;
