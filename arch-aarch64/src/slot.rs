//! The out-of-line copy of an instruction, and what is done before and after it runs.
//!
//! A slot is 32 bytes, of which the last eight belong to the core. Most hold the instruction, then `b
//! place+4` or BRK, then BRK to the end. Two plans hold something else:
//! - `ldr q0, label` becomes six instructions that save X16 on the dead stack below SP, load through it, and
//!   give it back ([`simd_load`]). So it needs no preparation and is right even where the core has no room
//!   for a frame.
//! - `blraa` and its kin become the authentication alone; [`after`] branches with what it has left. Where
//!   the core has no room for a frame, Rn stays authenticated instead of signed: the one difference.
//!
//! BTI: slots are for memory that is *not guarded* (mapped without PROT_BTI); then they need no landing pad.
//! [`before`] clears PSTATE.BTYPE all the same. [`fill`] is called at registration, the rest on the hit path;
//! all pure.

use crate::decode::Plan;
use crate::insn;
use crate::regs::{PSTATE_BTYPE, PtRegs};
use crate::simulate;
use probe_core::CodeAddr;
use probe_core::arch::{Tail, TailPatch};
use probe_core::error::Refusal;

/// The size of a slot.
pub(crate) const LEN: usize = 32;
/// How far from its place a slot may lie: what `b` reaches in either direction.
pub(crate) const REACH: usize = (1 << 27) - 4;
/// The instructions of a slot, without the core's eight bytes.
const WORDS: usize = LEN / 4 - 2;
/// Where the tail of a one-instruction slot is, in bytes.
const TAIL: usize = 4;
const BREAKPOINT: u32 = insn::breakpoint(insn::PROBE_IMM);

/// What `before` keeps for `after` and `abort`.
///
/// The default stands for a slot that was entered without `before`: nothing to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepState {
    /// The registers before the slot, as far as it changes them: X16 or the signed pointer, and SP.
    kept: Option<(u64, u64)>,
    /// PSTATE.BTYPE at the place.
    btype: u64,
}

/// Builds the slot. Where the jump back does not reach, the slot gets its breakpoint instead.
pub(crate) fn fill(
    plan: &Plan,
    bytes: &[u8],
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
    out: &mut [u8],
) -> Result<(), Refusal> {
    let mut words = [BREAKPOINT; WORDS];
    match *plan {
        Plan::LoadLiteralSimd { load, offset } => {
            words = simd_load(load, place.wrapping_offset(offset as isize), slot).ok_or(OUT_OF_REACH)?;
        }
        Plan::AuthenticatedBranch { authenticate, .. } => words[0] = authenticate,
        _ => {
            words[0] = insn::word_at(bytes).ok_or(TRUNCATED)?;
            words[1] = tail_word(plan, place, slot, tail).unwrap_or(BREAKPOINT);
        }
    }
    for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Ok(())
}

/// The slot of `ldr Qt, label`, whose label is `literal`.
fn simd_load(load: u32, literal: CodeAddr, slot: CodeAddr) -> Option<[u32; WORDS]> {
    let (page, at) = (literal.as_usize() & !0xfff, slot.wrapping_add(4).as_usize() & !0xfff);
    let in_page = literal.as_usize() as u32 & 0xfff;
    Some([
        0xf81f_0ff0, // str x16, [sp, #-16]!
        insn::adrp(16, page.wrapping_sub(at) as isize)?,
        0x9100_0210 | in_page << 10, // add x16, x16, #in_page
        load,
        0xf841_07f0, // ldr x16, [sp], #16
        BREAKPOINT,
    ])
}

/// The store that switches the tail. BRK and B may replace each other while another core executes them
/// (DDI 0487J.a B2.2.5). The slots of other plans always end in a breakpoint.
pub(crate) fn tail(plan: &Plan, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
    let word = tail_word(plan, place, slot, tail)?;
    let offset = match plan {
        Plan::LoadLiteralSimd { .. } => TAIL * (WORDS - 1),
        _ => TAIL,
    };
    Some(TailPatch { offset: offset as u8, len_bytes: 4, bytes: word.to_le_bytes() })
}

fn tail_word(plan: &Plan, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<u32> {
    match (tail, plan) {
        (Tail::Breakpoint, _) => Some(BREAKPOINT),
        (Tail::Jump, Plan::OutOfLine | Plan::SystemCall) => {
            insn::branch(place.wrapping_add(4).offset_from(slot.wrapping_add(TAIL)))
        }
        (Tail::Jump, _) => None,
    }
}

/// Prepares `regs` for the slot.
pub(crate) fn before(plan: &Plan, slot: CodeAddr, regs: &mut PtRegs) -> StepState {
    let kept = register_of(plan).map(|register| (regs.x_or_zero(register), regs.sp));
    let state = StepState { kept, btype: regs.pstate & PSTATE_BTYPE };
    regs.set_btype(0);
    regs.pc = simulate::address(slot);
    state
}

/// Finishes after the slot: gives back what it has changed and goes on in the original text.
pub(crate) fn after(plan: &Plan, place: CodeAddr, regs: &mut PtRegs, state: &StepState) {
    regs.pc = simulate::address(place.wrapping_add(4));
    if let Plan::AuthenticatedBranch { rn, kind, .. } = *plan {
        // The combined instructions do not write Rn. A failed authentication has left an address here that
        // faults when it is fetched from, as on hardware.
        let target = regs.x_or_zero(rn);
        if let Some((signed, _)) = state.kept {
            regs.set_x(rn, signed);
        }
        simulate::branch(regs, target, kind, place);
    }
}

/// Undoes everything when an instruction in the slot has faulted.
pub(crate) fn abort(plan: &Plan, place: CodeAddr, regs: &mut PtRegs, state: &StepState) {
    regs.pc = simulate::address(place);
    if let (Some(register), Some((value, sp))) = (register_of(plan), state.kept) {
        regs.set_x(register, value);
        regs.sp = sp;
    }
    regs.pstate |= state.btype;
}

/// Whether what [`before`] keeps is needed at the slot's end.
pub(crate) fn keeps_state(plan: &Plan) -> bool {
    register_of(plan).is_some()
}

/// The register that the slot of `plan` changes and the instruction does not.
fn register_of(plan: &Plan) -> Option<u8> {
    match *plan {
        Plan::LoadLiteralSimd { .. } => Some(16),
        Plan::AuthenticatedBranch { rn, .. } => Some(rn),
        _ => None,
    }
}

const TRUNCATED: Refusal =
    Refusal::invalid("aarch64.truncated", "fewer than four bytes of the instruction were kept");
const OUT_OF_REACH: Refusal = Refusal::unsupported(
    "aarch64.out_of_reach",
    "the slot is too far from the literal that the instruction loads",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::classify;
    use rstest::rstest;

    const PLACE: CodeAddr = CodeAddr::new(0x40_1000);
    const BRK: u32 = 0xd429_6aa0;

    fn filled(word: u32, slot: CodeAddr, tail: Tail) -> [u32; 6] {
        let (plan, _) = classify(word).expect("not refused");
        let mut out = [0; 24];
        fill(&plan, &word.to_le_bytes(), PLACE, slot, tail, &mut out).expect("in reach");
        core::array::from_fn(|i| insn::word_at(&out[i * 4..]).unwrap())
    }

    /// `add x0, x0, #1`.
    const ADD: u32 = 0x9100_0400;

    #[test]
    fn a_boosted_slot_jumps_back() {
        let slot = PLACE.wrapping_add(0x2000);
        // b from slot+4 to place+4: -0x2000.
        assert_eq!(filled(ADD, slot, Tail::Jump), [ADD, 0x17ff_f800, BRK, BRK, BRK, BRK]);
        assert_eq!(filled(ADD, slot, Tail::Breakpoint), [ADD, BRK, BRK, BRK, BRK, BRK]);
    }

    #[test]
    fn the_tail_patch_is_what_fill_writes() {
        let slot = PLACE.wrapping_add(0x2000);
        let (plan, _) = classify(ADD).unwrap();
        for which in [Tail::Jump, Tail::Breakpoint] {
            let patch = tail(&plan, PLACE, slot, which).expect("in reach");
            assert_eq!((patch.offset, patch.len_bytes), (4, 4));
            assert_eq!(u32::from_le_bytes(patch.bytes), filled(ADD, slot, which)[1]);
        }
    }

    #[test]
    fn out_of_reach_the_slot_keeps_its_breakpoint() {
        let (plan, _) = classify(ADD).unwrap();
        for slot in [PLACE.wrapping_add(REACH + 8), PLACE.wrapping_offset(-(REACH as isize) - 8)] {
            assert_eq!(tail(&plan, PLACE, slot, Tail::Jump), None);
            assert_eq!(filled(ADD, slot, Tail::Jump)[1], BRK);
        }
        for slot in [PLACE.wrapping_add(REACH), PLACE.wrapping_offset(-(REACH as isize))] {
            assert!(tail(&plan, PLACE, slot, Tail::Jump).is_some());
        }
    }

    /// Original and slot words from `aarch64-linux-gnu-as`.
    #[rstest]
    #[case::retaa(0xd65f_0bff, 0xdac1_13fe)]
    #[case::retab(0xd65f_0fff, 0xdac1_17fe)]
    #[case::braaz_x1(0xd61f_083f, 0xdac1_33e1)]
    #[case::brabz_x1(0xd61f_0c3f, 0xdac1_37e1)]
    #[case::braa_x1_x2(0xd71f_0822, 0xdac1_1041)]
    #[case::brab_x1_sp(0xd71f_0c3f, 0xdac1_17e1)]
    #[case::blraa_x1_x2(0xd73f_0822, 0xdac1_1041)]
    #[case::blrab_x1_x2(0xd73f_0c22, 0xdac1_1441)]
    #[case::blraaz_x1(0xd63f_083f, 0xdac1_33e1)]
    fn stepped_instructions_always_end_in_a_breakpoint(#[case] word: u32, #[case] in_slot: u32) {
        let slot = PLACE.wrapping_add(0x2000);
        assert_eq!(filled(word, slot, Tail::Jump)[..2], [in_slot, BRK]);
        let (plan, _) = classify(word).unwrap();
        assert_eq!(tail(&plan, PLACE, slot, Tail::Jump), None);
    }

    #[rstest]
    #[case::add(ADD)]
    #[case::ldr_q(0x9c00_0043)]
    #[case::retaa(0xd65f_0bff)]
    #[case::blraa_x1_x2(0xd73f_0822)]
    fn an_aborted_step_leaves_nothing_behind(#[case] word: u32) {
        let (plan, _) = classify(word).unwrap();
        let mut regs =
            PtRegs { sp: 1, pc: 0x40_1000, pstate: 0x6000_0800, x: core::array::from_fn(|i| i as u64) };
        let start = regs;
        let slot = PLACE.wrapping_add(0x2000);
        let state = before(&plan, slot, &mut regs);
        assert_eq!((regs.pc, regs.pstate), (0x40_3000, 0x6000_0000));
        abort(&plan, PLACE, &mut regs, &state);
        assert_eq!(regs, start);
    }

    /// From `aarch64-linux-gnu-as`: str, adrp, add, ldr, ldr, and a breakpoint whatever the tail.
    #[rstest]
    #[case::ldr_q(0x9c00_0043, 0x3dc0_0203)]
    #[case::ldr_d(0x5c00_0043, 0xfd40_0203)]
    #[case::ldr_s(0x1c00_0043, 0xbd40_0203)]
    fn a_simd_literal_is_loaded_through_x16(#[case] word: u32, #[case] load: u32) {
        let slot = PLACE.wrapping_add(0x2000);
        // The literal is at 0x401008: two pages back from the slot's adrp, 8 in its page.
        let want = [0xf81f_0ff0, 0xd0ff_fff0, 0x9100_2210, load, 0xf841_07f0, BRK];
        for tail in [Tail::Jump, Tail::Breakpoint] {
            assert_eq!(filled(word, slot, tail), want);
        }
    }

    #[test]
    fn a_bare_authenticated_return_still_returns() {
        let (plan, _) = classify(0xd65f_0bff).unwrap();
        let mut regs = PtRegs { pc: 0x40_3004, ..PtRegs::default() };
        regs.x[30] = 0x50_0000;
        after(&plan, PLACE, &mut regs, &StepState::default());
        assert_eq!((regs.pc, regs.x[30]), (0x50_0000, 0x50_0000));
    }

    #[test]
    fn an_authenticated_call_links_and_keeps_the_signed_pointer() {
        let (plan, _) = classify(0xd73f_0822).unwrap();
        let mut regs = PtRegs { pc: 0x40_1000, x: core::array::from_fn(|i| i as u64), ..PtRegs::default() };
        regs.x[1] = 0x0070_0000_0050_0000;
        let start = regs;
        let state = before(&plan, PLACE.wrapping_add(0x2000), &mut regs);
        // What AUTIA leaves.
        regs.x[1] = 0x50_0000;
        regs.pc = 0x40_3004;
        after(&plan, PLACE, &mut regs, &state);
        let mut want = PtRegs { pc: 0x50_0000, pstate: 0x800, ..start };
        want.x[30] = 0x40_1004;
        assert_eq!(regs, want);
    }
}
