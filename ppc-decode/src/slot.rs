//! Out-of-line copies: what a slot holds, how its tail is switched, and what is set right afterwards.
//!
//! ```text
//! 0  instruction (4 or 8 bytes)      8-byte aligned, so that a prefixed one never crosses 64 bytes
//! n  `b` to the place's next one  |  `trap`
//!    `trap` to the end, less the core's word
//! ```
//! `before_step`, `after_step` and `abort_step` run on the hit path. Pure.

use crate::decode::Plan;
use crate::insn;
use crate::{Mode, Reason, Registers, simulate};
use probe_core::CodeAddr;
use probe_core::arch::{Method, Tail, TailPatch};
use probe_core::error::Refusal;

/// The size of a slot in bytes; the core owns the last eight.
pub const LEN: usize = 32;

/// How far a slot may lie from its place so that `b` leads back: 32 MiB, less the slot.
pub const REACH: usize = 0x200_0000 - 2 * LEN;

/// Writes the copy of `insn` (the bytes of `place`) for a slot at `slot`.
pub fn fill<M: Mode>(
    plan: &Plan,
    insn_bytes: &[u8],
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
    out: &mut [u8],
) -> Result<(), Refusal> {
    let (words, len) = words_of::<M>(insn_bytes)?;
    let copy = match plan {
        Plan::Relocate => relocate::<M>(words, place, slot)?,
        Plan::Bctar(_) => [insn::MFTAR_R0, 0],
        _ => words,
    };
    for chunk in out.chunks_exact_mut(4) {
        chunk.copy_from_slice(&M::insn_bytes(insn::TRAP));
    }
    for (chunk, word) in out.chunks_exact_mut(4).zip(copy).take(len / 4) {
        chunk.copy_from_slice(&M::insn_bytes(word));
    }
    if let Some(patch) = self::tail::<M>(plan, len, place, slot, tail) {
        let at = usize::from(patch.offset);
        let end = at + usize::from(patch.len_bytes);
        let stored = &patch.bytes[..usize::from(patch.len_bytes)];
        out.get_mut(at..end).ok_or(M::refusal(Reason::SlotReach))?.copy_from_slice(stored);
    }
    Ok(())
}

/// The store that gives the slot the tail `tail`.
pub fn tail<M: Mode>(
    plan: &Plan,
    insn_len: usize,
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
) -> Option<TailPatch> {
    let word = match tail {
        Tail::Breakpoint => insn::TRAP,
        Tail::Jump if plan.method() == Method::Boost => insn::b(place.offset_from(slot) as i64)?,
        // What needs work after the step must not get past it.
        Tail::Jump => return None,
    };
    Some(TailPatch { offset: insn_len as u8, len_bytes: 4, bytes: M::insn_bytes(word) })
}

/// What [`Arch::before_step`](probe_core::arch::Arch::before_step) keeps: r0 for `bctar`, the MSR for
/// `mfmsr`. Nothing, by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept(Option<u64>);

/// Keeps what the slot of `plan` borrows or may not show.
pub fn before_step<R: Registers>(plan: &Plan, slot: CodeAddr, regs: &mut R) -> Kept {
    regs.set_nip(slot.as_usize() as u64);
    Kept(match plan {
        Plan::Bctar(_) => Some(regs.gpr(0)),
        Plan::Mfmsr(_) => Some(regs.msr()),
        _ => None,
    })
}

/// Sets right what the slot changed differently from the place.
pub fn after_step<R: Registers>(
    plan: &Plan,
    insn_len: usize,
    place: CodeAddr,
    slot: CodeAddr,
    regs: &mut R,
    Kept(kept): Kept,
) {
    let place = place.as_usize() as u64;
    let next = regs.effective(place.wrapping_add(insn_len as u64));
    regs.set_nip(next);
    match *plan {
        Plan::Bctar(word) => {
            let target = regs.gpr(0);
            regs.set_gpr(0, kept.unwrap_or(target));
            simulate::branch_to(word, regs, next, target);
        }
        Plan::Mfmsr(word) => simulate::finish_mfmsr(word, regs, kept.unwrap_or(regs.msr())),
        // Book I, "System Call Vectored": LR is the address of the next instruction. Whoever returned from
        // the system call may have changed it.
        Plan::Scv if regs.link() == (slot.as_usize() + insn_len) as u64 => regs.set_link(next),
        _ => {}
    }
}

/// Undoes [`before_step`] after a fault in the slot.
///
/// No instruction that runs in a slot has changed a register when it faults (Book III, "Interrupt
/// Processing": precise), except the one that reads TAR, which has not run.
pub fn abort_step<R: Registers>(place: CodeAddr, regs: &mut R) {
    regs.set_nip(place.as_usize() as u64);
}

/// The one or two words of an instruction and its length in bytes.
fn words_of<M: Mode>(bytes: &[u8]) -> Result<([u32; 2], usize), Refusal> {
    let (raw, _) = bytes.as_chunks::<4>();
    match *raw {
        [first] => Ok(([M::insn(first), 0], 4)),
        [prefix, suffix, ..] if insn::opcd(M::insn(prefix)) == insn::OP_PREFIX => {
            Ok(([M::insn(prefix), M::insn(suffix)], 8))
        }
        [first, ..] => Ok(([M::insn(first), 0], 4)),
        [] => Err(M::refusal(Reason::Truncated)),
    }
}

/// A prefixed PC-relative instruction that addresses from `slot` what it addresses from `place`.
fn relocate<M: Mode>(
    [prefix, suffix]: [u32; 2],
    place: CodeAddr,
    slot: CodeAddr,
) -> Result<[u32; 2], Refusal> {
    let d = insn::prefix_displacement(prefix, suffix) + place.offset_from(slot) as i64;
    let (prefix, suffix) =
        insn::with_prefix_displacement(prefix, suffix, d).ok_or(M::refusal(Reason::SlotReach))?;
    Ok([prefix, suffix])
}
