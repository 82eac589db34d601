//! The effect of a simulated instruction on the registers.
//!
//! Called on the hit path; nothing here touches memory, so nothing faults. Pure.

use crate::decode::Plan;
use crate::insn;
use crate::regs::PtRegs;

/// The MSR bits that `mfmsr` must not show as the slot had them: `MSR[EE]`, which a host may clear around a slot.
const EE: u64 = 1 << 15;

/// Executes `plan` on `regs`, whose nip is the place. Plans that run in a slot are left alone.
pub(crate) fn simulate(plan: &Plan, regs: &mut PtRegs) {
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

/// Branches to `target`, a register's value, as `bclr`, `bcctr` and `bctar` do; `next` is the instruction after the place.
///
/// Book I, "Branch Conditional to Link Register": the low two bits of the register are ignored, the link register
/// is read before it is written.
pub(crate) fn branch_to(word: u32, regs: &mut PtRegs, next: u64, target: u64) {
    let taken = is_taken(word, regs);
    if insn::lk(word) {
        regs.link = next;
    }
    regs.nip = if taken { regs.effective(target & !3) } else { next };
}

/// Puts the place's MSR, kept from before the slot ran, where `mfmsr` has put the slot's.
pub(crate) fn finish_mfmsr(word: u32, regs: &mut PtRegs, kept: u64) {
    let rt = insn::rt(word);
    regs.gpr[rt] = regs.gpr[rt] & !EE | kept & EE;
}

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
/// Book I, "Branch Instructions", figure "BO field encodings": CTR is tested as far as the mode has address bits.
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
