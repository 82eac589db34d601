//! The effect of a simulated instruction on the registers.
//!
//! Called on the hit path; nothing here touches memory, so nothing faults. Pure.

use crate::decode::Plan;
use crate::insn;
use crate::regs::{MSR_SE, PtRegs};

/// The MSR bits that may differ in the slot, and that `mfmsr` must not show as they were there: a host may
/// clear `MSR[EE]` around a slot, and set `MSR[SE]`.
const OF_THE_SLOT: u64 = 1 << 15 | MSR_SE;

/// Executes `plan` on `regs`, whose nip is the place. Plans that run in a slot are left alone.
#[inline]
pub(crate) fn simulate(plan: &Plan, regs: &mut PtRegs) {
    // By itself, because it needs so much less than the others.
    match *plan {
        Plan::B(word) if !insn::lk(word) => b(word, regs, 0),
        _ => simulate_other(plan, regs),
    }
}

/// As [`simulate`], for all but direct branches that do not link.
#[inline(never)]
fn simulate_other(plan: &Plan, regs: &mut PtRegs) {
    let next = regs.effective(regs.nip.wrapping_add(4));
    match *plan {
        Plan::B(word) => b(word, regs, next),
        Plan::Bc(word) => bc(word, regs, next),
        Plan::Bclr(word) => branch_to(word, regs, next, regs.link),
        Plan::Bcctr(word) => branch_to(word, regs, next, regs.ctr),
        Plan::Addpcis(word) => {
            regs.gpr[insn::rt(word)] = next.wrapping_add_signed(insn::addpcis_d(word));
            regs.nip = next;
        }
        Plan::Mfspr(word) => {
            regs.gpr[insn::rt(word)] = match insn::spr(word) {
                insn::SPR_LR => regs.link,
                insn::SPR_CTR => regs.ctr,
                _ => regs.xer,
            };
            regs.nip = next;
        }
        Plan::Mtspr(word) => {
            let value = regs.gpr[insn::rt(word)];
            match insn::spr(word) {
                insn::SPR_LR => regs.link = value,
                _ => regs.ctr = value,
            }
            regs.nip = next;
        }
        Plan::Nop => regs.nip = next,
        Plan::Copy | Plan::Relocate | Plan::Sc | Plan::Scv | Plan::Mfmsr(_) | Plan::Bctar(_) => {}
    }
}

/// Branches to `target`, a register's value, as `bclr`, `bcctr` and `bctar` do; `next` is the instruction
/// after the place.
///
/// Book I, "Branch Conditional to Link Register": the low two bits of the register are ignored, the link
/// register is read before it is written.
pub(crate) fn branch_to(word: u32, regs: &mut PtRegs, next: u64, target: u64) {
    let taken = is_taken(word, regs);
    if insn::lk(word) {
        regs.link = next;
    }
    regs.nip = if taken { regs.effective(target & !3) } else { next };
}

/// Replaces the slot's MSR in the result of `mfmsr` by the place's, which was kept before the slot ran.
pub(crate) fn finish_mfmsr(word: u32, regs: &mut PtRegs, kept: u64) {
    let rt = insn::rt(word);
    regs.gpr[rt] = regs.gpr[rt] & !OF_THE_SLOT | kept & OF_THE_SLOT;
}

#[inline(always)]
fn b(word: u32, regs: &mut PtRegs, next: u64) {
    let base = if insn::aa(word) { 0 } else { regs.nip };
    if insn::lk(word) {
        regs.link = next;
    }
    regs.nip = regs.effective(base.wrapping_add_signed(insn::li(word)));
}

fn bc(word: u32, regs: &mut PtRegs, next: u64) {
    let base = if insn::aa(word) { 0 } else { regs.nip };
    let target = base.wrapping_add_signed(insn::bd(word));
    branch_to(word, regs, next, target);
}

/// Decrements CTR where BO says so, and tells whether the branch is taken.
///
/// Book I, "Branch Instructions", figure "BO field encodings": CTR is tested as far as the mode has address
/// bits.
fn is_taken(word: u32, regs: &mut PtRegs) -> bool {
    let bo = insn::rt(word);
    let mut taken = true;
    if insn::bo_decrements(bo) {
        regs.ctr = regs.ctr.wrapping_sub(1);
        let is_zero = regs.effective(regs.ctr) == 0;
        taken = is_zero == (bo & 2 != 0);
    }
    if insn::bo_tests_cr(bo) {
        let bit = regs.ccr >> (31 - insn::ra(word)) & 1;
        taken &= (bit != 0) == (bo & 8 != 0);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::MSR_SF;

    const PLACE: u64 = 0x1_1000_0000;

    fn regs() -> PtRegs {
        PtRegs { nip: PLACE, msr: MSR_SF, link: 0x2003, ctr: 0x1_0000_0001, ..PtRegs::default() }
    }

    /// Executes `bc BO,BI,.+0x40` with link and returns (taken, CTR).
    fn bc(bo: u32, bi: u32, ctr: u64, ccr: u64, msr: u64) -> (bool, u64) {
        let mut regs = PtRegs { ctr, ccr, msr, ..regs() };
        regs.nip = regs.effective(PLACE);
        let next = regs.nip + 4;
        simulate(&Plan::Bc(16 << 26 | bo << 21 | bi << 16 | 0x41), &mut regs);
        assert_eq!(regs.link, next);
        assert!(regs.nip == next || regs.nip == next + 0x3c);
        (regs.nip != next, regs.ctr)
    }

    /// Book I, figure "BO field encodings".
    #[test]
    fn bo_and_bi_decide() {
        let set = 1 << (31 - 5);
        for hint in 0..2 {
            assert_eq!(bc(hint, 5, 2, 0, MSR_SF), (true, 1));
            assert_eq!(bc(hint, 5, 1, 0, MSR_SF), (false, 0));
            assert_eq!(bc(hint, 5, 2, set, MSR_SF), (false, 1));
            assert_eq!(bc(0b00010 | hint, 5, 1, 0, MSR_SF), (true, 0));
            assert_eq!(bc(0b00010 | hint, 5, 1, set, MSR_SF), (false, 0));
            assert_eq!(bc(0b01000 | hint, 5, 2, set, MSR_SF), (true, 1));
            assert_eq!(bc(0b01000 | hint, 5, 2, !set, MSR_SF), (false, 1));
            assert_eq!(bc(0b01010 | hint, 5, 1, set, MSR_SF), (true, 0));
            assert_eq!(bc(0b00100 | hint, 5, 9, !set & 0xffff_ffff, MSR_SF), (true, 9));
            assert_eq!(bc(0b01100 | hint, 5, 9, set, MSR_SF), (true, 9));
            assert_eq!(bc(0b01100 | hint, 5, 9, 0, MSR_SF), (false, 9));
            assert_eq!(bc(0b10000 | hint, 5, 0, 0, MSR_SF), (true, u64::MAX));
            assert_eq!(bc(0b10010 | hint, 5, 1, 0, MSR_SF), (true, 0));
            assert_eq!(bc(0b10100 | hint, 5, 1, 0, MSR_SF), (true, 1));
        }
    }

    /// "CTR[M:63]": in 32-bit mode only the low half is tested, all of it is decremented.
    #[test]
    fn ctr_is_tested_in_the_width_of_the_mode() {
        assert_eq!(bc(0b10000, 0, (1 << 32) + 1, 0, MSR_SF), (true, 1 << 32));
        assert_eq!(bc(0b10000, 0, (1 << 32) + 1, 0, 0), (false, 1 << 32));
    }

    #[test]
    fn absolute_branches_ignore_the_place_and_32_bit_mode_wraps() {
        let mut regs = regs();
        simulate(&Plan::B(18 << 26 | 0x03ff_ff00 | 2), &mut regs);
        assert_eq!(regs.nip, 0u64.wrapping_sub(0x100));
        let mut regs = PtRegs { nip: 0xffff_fffc, msr: 0, ..regs };
        simulate(&Plan::B(18 << 26 | 8 | 1), &mut regs);
        assert_eq!((regs.nip, regs.link), (4, 0));
    }

    #[test]
    fn a_linking_branch_to_the_link_register_uses_the_old_one() {
        let mut regs = regs();
        simulate(&Plan::Bclr(19 << 26 | 20 << 21 | 16 << 1 | 1), &mut regs);
        assert_eq!((regs.nip, regs.link), (0x2000, PLACE + 4));
    }

    #[test]
    fn addpcis_adds_to_the_next_address() {
        let mut regs = regs();
        // addpcis 3,-1: d0 = 0x3ff, d1 = 31, d2 = 1.
        simulate(&Plan::Addpcis(19 << 26 | 3 << 21 | 31 << 16 | 0xffc0 | 2 << 1 | 1), &mut regs);
        assert_eq!((regs.gpr[3], regs.nip), (PLACE + 4 - 0x1_0000, PLACE + 4));
    }

    #[test]
    fn mfmsr_shows_the_interrupt_bit_of_the_place() {
        let mut regs = regs();
        regs.gpr[3] = MSR_SF | 0x2;
        finish_mfmsr(3 << 21, &mut regs, MSR_SF | OF_THE_SLOT | 0x4);
        assert_eq!(regs.gpr[3], MSR_SF | OF_THE_SLOT | 0x2);
    }
}
