//! The effect of a simulated instruction on the registers.
//!
//! Called on the hit path; nothing here touches memory, so nothing faults. Pure.

use crate::Registers;
use crate::decode::Plan;
use crate::insn;

/// Executes `plan` on `regs`, whose nip is the place. Plans that run in a slot are left alone.
#[inline]
pub fn simulate<R: Registers>(plan: &Plan, regs: &mut R) {
    // By itself, because it needs so much less than the others.
    match *plan {
        Plan::B(word) if !insn::lk(word) => b(word, regs, 0),
        _ => simulate_other(plan, regs),
    }
}

/// As [`simulate`], for all but direct branches that do not link.
#[inline(never)]
fn simulate_other<R: Registers>(plan: &Plan, regs: &mut R) {
    let next = regs.effective(regs.nip().wrapping_add(4));
    match *plan {
        Plan::B(word) => b(word, regs, next),
        Plan::Bc(word) => bc(word, regs, next),
        Plan::Bclr(word) => branch_to(word, regs, next, regs.link()),
        Plan::Bcctr(word) => branch_to(word, regs, next, regs.ctr()),
        Plan::Addpcis(word) => {
            regs.set_gpr(insn::rt(word), next.wrapping_add_signed(insn::addpcis_d(word)));
            regs.set_nip(next);
        }
        Plan::Mfspr(word) => {
            let value = match insn::spr(word) {
                insn::SPR_LR => regs.link(),
                insn::SPR_CTR => regs.ctr(),
                _ => regs.xer(),
            };
            regs.set_gpr(insn::rt(word), value);
            regs.set_nip(next);
        }
        Plan::Mtspr(word) => {
            let value = regs.gpr(insn::rt(word));
            match insn::spr(word) {
                insn::SPR_LR => regs.set_link(value),
                _ => regs.set_ctr(value),
            }
            regs.set_nip(next);
        }
        Plan::Nop => regs.set_nip(next),
        Plan::Copy | Plan::Relocate | Plan::Sc | Plan::Scv | Plan::Mfmsr(_) | Plan::Bctar(_) => {}
    }
}

/// Branches to `target`, a register's value, as `bclr`, `bcctr` and `bctar` do; `next` is the instruction
/// after the place.
///
/// Book I, "Branch Conditional to Link Register": the low two bits of the register are ignored, the link
/// register is read before it is written.
pub fn branch_to<R: Registers>(word: u32, regs: &mut R, next: u64, target: u64) {
    let taken = is_taken(word, regs);
    if insn::lk(word) {
        regs.set_link(next);
    }
    regs.set_nip(if taken { regs.effective(target & !3) } else { next });
}

/// Replaces the slot's MSR in the result of `mfmsr` by the place's, which was kept before the slot ran.
pub fn finish_mfmsr<R: Registers>(word: u32, regs: &mut R, kept: u64) {
    let rt = insn::rt(word);
    regs.set_gpr(rt, regs.gpr(rt) & !R::OF_THE_SLOT | kept & R::OF_THE_SLOT);
}

#[inline(always)]
fn b<R: Registers>(word: u32, regs: &mut R, next: u64) {
    let base = if insn::aa(word) { 0 } else { regs.nip() };
    if insn::lk(word) {
        regs.set_link(next);
    }
    regs.set_nip(regs.effective(base.wrapping_add_signed(insn::li(word))));
}

fn bc<R: Registers>(word: u32, regs: &mut R, next: u64) {
    let base = if insn::aa(word) { 0 } else { regs.nip() };
    let target = base.wrapping_add_signed(insn::bd(word));
    branch_to(word, regs, next, target);
}

/// Decrements CTR where BO says so, and tells whether the branch is taken.
///
/// Book I, "Branch Instructions", figure "BO field encodings": CTR is tested as far as the mode has address
/// bits.
fn is_taken<R: Registers>(word: u32, regs: &mut R) -> bool {
    let bo = insn::rt(word);
    let mut taken = true;
    if insn::bo_decrements(bo) {
        regs.set_ctr(regs.ctr().wrapping_sub(1));
        let is_zero = regs.effective(regs.ctr()) == 0;
        taken = is_zero == (bo & 2 != 0);
    }
    if insn::bo_tests_cr(bo) {
        let bit = regs.ccr() >> (31 - insn::ra(word)) & 1;
        taken &= (bit != 0) == (bo & 8 != 0);
    }
    taken
}
