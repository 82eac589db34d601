//! Out-of-line copies: what a slot holds, how its tail is switched, and what is set right afterwards.
//!
//! ```text
//! 0  instruction (4 or 8 bytes)      8-byte aligned, so that a prefixed one never crosses 64 bytes
//! n  `b` to the place's next one  |  `trap`
//!    `trap` to the end, less the core's word
//! ```
//! `before_step`, `after_step` and `abort_step` run on the hit path. Pure.

use crate::Endian;
use crate::decode::Plan;
use crate::insn;
use crate::regs::PtRegs;
use crate::simulate;
use probe_core::CodeAddr;
use probe_core::arch::{Method, Tail, TailPatch};
use probe_core::error::Refusal;

/// The size of a slot in bytes; the core owns the last eight.
pub(crate) const LEN: usize = 32;

/// How far a slot may lie from its place so that `b` leads back: 32 MiB, less the slot.
pub(crate) const REACH: usize = 0x200_0000 - 2 * LEN;

/// Writes the copy of `insn` (the bytes of `place`) for a slot at `slot`.
pub(crate) fn fill<E: Endian>(
    plan: &Plan,
    insn_bytes: &[u8],
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
    out: &mut [u8],
) -> Result<(), Refusal> {
    let (words, len) = words_of::<E>(insn_bytes)?;
    let copy = match plan {
        Plan::Relocate => relocate(words, place, slot)?,
        Plan::Bctar(_) => [insn::MFTAR_R0, 0],
        _ => words,
    };
    for chunk in out.chunks_exact_mut(4) {
        chunk.copy_from_slice(E::BREAKPOINT);
    }
    for (chunk, word) in out.chunks_exact_mut(4).zip(copy).take(len / 4) {
        chunk.copy_from_slice(&E::bytes(word));
    }
    if let Some(patch) = self::tail::<E>(plan, len, place, slot, tail) {
        let at = usize::from(patch.offset);
        let end = at + usize::from(patch.len_bytes);
        let stored = &patch.bytes[..usize::from(patch.len_bytes)];
        out.get_mut(at..end).ok_or(insn::REFUSE_SLOT_REACH)?.copy_from_slice(stored);
    }
    Ok(())
}

/// The store that gives the slot the tail `tail`.
pub(crate) fn tail<E: Endian>(
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
    Some(TailPatch { offset: insn_len as u8, len_bytes: 4, bytes: E::bytes(word) })
}

/// What [`Arch::before_step`](probe_core::arch::Arch::before_step) keeps: r0 for `bctar`, the MSR for
/// `mfmsr`. Nothing, by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept(Option<u64>);

/// Keeps what the slot of `plan` borrows or may not show.
pub(crate) fn before_step(plan: &Plan, slot: CodeAddr, regs: &mut PtRegs) -> Kept {
    regs.nip = slot.as_usize() as u64;
    Kept(match plan {
        Plan::Bctar(_) => Some(regs.gpr[0]),
        Plan::Mfmsr(_) => Some(regs.msr),
        _ => None,
    })
}

/// Sets right what the slot changed differently from the place.
pub(crate) fn after_step(
    plan: &Plan,
    insn_len: usize,
    place: CodeAddr,
    slot: CodeAddr,
    regs: &mut PtRegs,
    Kept(kept): Kept,
) {
    let place = place.as_usize() as u64;
    let next = regs.effective(place.wrapping_add(insn_len as u64));
    regs.nip = next;
    match *plan {
        Plan::Bctar(word) => {
            let target = regs.gpr[0];
            regs.gpr[0] = kept.unwrap_or(target);
            simulate::branch_to(word, regs, next, target);
        }
        Plan::Mfmsr(word) => simulate::finish_mfmsr(word, regs, kept.unwrap_or(regs.msr)),
        // Book I, "System Call Vectored": LR is the address of the next instruction. Whoever returned from
        // the system call may have changed it.
        Plan::Scv if regs.link == (slot.as_usize() + insn_len) as u64 => regs.link = next,
        _ => {}
    }
}

/// Undoes [`before_step`] after a fault in the slot.
///
/// No instruction that runs in a slot has changed a register when it faults (Book III, "Interrupt
/// Processing": precise), except the one that reads TAR, which has not run.
pub(crate) fn abort_step(place: CodeAddr, regs: &mut PtRegs) {
    regs.nip = place.as_usize() as u64;
}

/// The one or two words of an instruction and its length in bytes.
fn words_of<E: Endian>(bytes: &[u8]) -> Result<([u32; 2], usize), Refusal> {
    let (raw, _) = bytes.as_chunks::<4>();
    match *raw {
        [first] => Ok(([E::word(first), 0], 4)),
        [prefix, suffix, ..] if insn::opcd(E::word(prefix)) == insn::OP_PREFIX => {
            Ok(([E::word(prefix), E::word(suffix)], 8))
        }
        [first, ..] => Ok(([E::word(first), 0], 4)),
        [] => Err(insn::REFUSE_TRUNCATED),
    }
}

/// A prefixed PC-relative instruction that addresses from `slot` what it addresses from `place`.
fn relocate([prefix, suffix]: [u32; 2], place: CodeAddr, slot: CodeAddr) -> Result<[u32; 2], Refusal> {
    let d = insn::prefix_displacement(prefix, suffix) + place.offset_from(slot) as i64;
    let (prefix, suffix) =
        insn::with_prefix_displacement(prefix, suffix, d).ok_or(insn::REFUSE_SLOT_REACH)?;
    Ok([prefix, suffix])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::MSR_SF;
    use crate::{Big, Little};

    const PLACE: CodeAddr = CodeAddr::new(0x1000_0000);
    const SLOT: CodeAddr = CodeAddr::new(0x1100_0040);

    fn filled<E: Endian>(plan: Plan, words: &[u32], slot: CodeAddr) -> Result<[u32; 6], Refusal> {
        let mut bytes = [0; 8];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&E::bytes(*word));
        }
        let mut out = [0; 24];
        fill::<E>(&plan, &bytes[..words.len() * 4], PLACE, slot, Tail::Breakpoint, &mut out)?;
        let (raw, _) = out.as_chunks::<4>();
        Ok(core::array::from_fn(|index| E::word(raw[index])))
    }

    fn relocated<E: Endian>(d: i64, slot: CodeAddr) -> Result<i64, Refusal> {
        let (prefix, suffix) = insn::with_prefix_displacement(0x0410_0000, 0xe480_0000, d).unwrap();
        let [prefix, suffix, tail, ..] = filled::<E>(Plan::Relocate, &[prefix, suffix], slot)?;
        assert_eq!((prefix >> 18, suffix >> 16, tail), (0x0410_0000 >> 18, 0xe480, insn::TRAP));
        Ok(insn::prefix_displacement(prefix, suffix))
    }

    #[test]
    fn a_pc_relative_access_addresses_the_same_from_its_slot() {
        let distance = SLOT.offset_from(PLACE) as i64;
        for d in [0, 8, -8, 0x1_2345, -0x1_2345, (1 << 33) - 1, -(1 << 33) + distance] {
            assert_eq!(relocated::<Big>(d, SLOT), Ok(d - distance), "{d:#x}");
            assert_eq!(relocated::<Little>(d, SLOT), Ok(d - distance), "{d:#x}");
        }
        assert_eq!(relocated::<Big>(-(1 << 33), SLOT), Err(insn::REFUSE_SLOT_REACH));
    }

    #[test]
    fn the_jump_back_reaches_as_far_as_promised_and_no_further() {
        let tail_at = |slot| tail::<Big>(&Plan::Copy, 4, PLACE, slot, Tail::Jump);
        for slot in [PLACE.wrapping_add(REACH), PLACE.wrapping_offset(-(REACH as isize))] {
            let word = Big::word(tail_at(slot).unwrap().bytes);
            assert_eq!(insn::li(word), PLACE.offset_from(slot) as i64);
        }
        assert_eq!(tail_at(PLACE.wrapping_add(0x200_0004)), None);
        assert_eq!(tail_at(PLACE.wrapping_offset(-0x200_0000)), None);
    }

    #[test]
    fn bctar_borrows_r0_and_branches_to_tar() {
        let word = 19 << 26 | 20 << 21 | insn::XO_BCTAR << 1 | 1;
        let plan = Plan::Bctar(word);
        assert_eq!(filled::<Big>(plan, &[word], SLOT).unwrap()[..2], [insn::MFTAR_R0, insn::TRAP]);
        let mut regs = PtRegs { msr: MSR_SF, ..PtRegs::default() };
        regs.gpr[0] = 0x77;
        let kept = before_step(&plan, SLOT, &mut regs);
        assert_eq!(regs.nip, SLOT.as_usize() as u64);
        regs.gpr[0] = 0x4_0003;
        regs.nip += 4;
        after_step(&plan, 4, PLACE, SLOT, &mut regs, kept);
        assert_eq!((regs.gpr[0], regs.nip, regs.link), (0x77, 0x4_0000, 0x1000_0004));
    }

    /// By the slot's address alone, with nothing kept: the core has no frame for a system call.
    #[test]
    fn scv_leaves_the_address_behind_the_place_in_the_link_register() {
        let mut regs = PtRegs { msr: MSR_SF, nip: 0x1100_0044, link: 0x1100_0044, ..PtRegs::default() };
        after_step(&Plan::Scv, 4, PLACE, SLOT, &mut regs, Kept::default());
        assert_eq!((regs.nip, regs.link), (0x1000_0004, 0x1000_0004));
        regs.link = 0x5555;
        after_step(&Plan::Scv, 4, PLACE, SLOT, &mut regs, Kept::default());
        assert_eq!(regs.link, 0x5555);
    }

    #[test]
    fn a_fault_in_the_slot_is_the_places() {
        let mut regs = PtRegs::default();
        regs.gpr[3] = 5;
        let before = PtRegs { nip: PLACE.as_usize() as u64, ..regs };
        let _kept = before_step(&Plan::Copy, SLOT, &mut regs);
        abort_step(PLACE, &mut regs);
        assert_eq!(regs, before);
    }
}
