//! The effect of a simulated instruction on the registers.
//!
//! Pure and allocation-free: on the hit path. Pseudocode: the "Operation" sections of DDI 0487J.a C6.2.
//!
//! Every simulation clears PSTATE.BTYPE, as executing any instruction does, and indirect branches set it as
//! hardware does (D8.4.4), so that the target's landing pad is checked in a guarded page. One bit of that is
//! not known here: whether the *place* lies in a guarded page. `br` through a register other than X16 and X17
//! leaves 0b11 from a guarded page and 0b01 from others. 0b01 is taken: it is accepted wherever 0b11 is, so a
//! correct program never faults because of a probe; an incorrect one (`br x0` to `bti c`) goes on.

use crate::decode::{BranchKind, Literal, Plan, When, Width};
use crate::regs::{BTYPE_CALL, BTYPE_JUMP, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{MemFault, Memory};

/// Executes `plan` at `place`, or returns the fault of its load and leaves `regs` alone.
///
/// The plan of a slot, which the core never passes, only moves the program counter on.
#[inline]
pub(crate) fn simulate<M: Memory>(
    plan: &Plan,
    place: CodeAddr,
    regs: &mut PtRegs,
    memory: &M,
) -> Result<(), MemFault> {
    // By itself, because it needs so much less than the others.
    if let Plan::Branch { offset } = *plan {
        regs.pc = address(place.wrapping_offset(offset as isize));
        regs.set_btype(0);
        return Ok(());
    }
    simulate_other(plan, place, regs, memory)
}

/// As [`simulate`], for all but direct branches.
#[inline(never)]
fn simulate_other<M: Memory>(
    plan: &Plan,
    place: CodeAddr,
    regs: &mut PtRegs,
    memory: &M,
) -> Result<(), MemFault> {
    let next = place.wrapping_add(4);
    let relative = |offset: i32| place.wrapping_offset(offset as isize);
    let taken = |yes: bool, offset: i32| if yes { relative(offset) } else { next };
    let target = match *plan {
        Plan::Nop | Plan::OutOfLine | Plan::SystemCall => next,
        Plan::Branch { offset } => relative(offset),
        Plan::LoadLiteralSimd { .. } | Plan::AuthenticatedBranch { .. } => next,
        Plan::BranchLink { offset } => {
            regs.x[30] = address(next);
            relative(offset)
        }
        Plan::BranchCondition { cond, offset } => taken(regs.condition_holds(cond), offset),
        Plan::CompareBranch { rt, width, when, offset } => {
            let value = match width {
                Width::W => regs.x_or_zero(rt) & 0xffff_ffff,
                Width::X => regs.x_or_zero(rt),
            };
            taken((value == 0) == (when == When::Zero), offset)
        }
        Plan::TestBranch { rt, bit, when, offset } => {
            let is_zero = regs.x_or_zero(rt) >> (bit & 63) & 1 == 0;
            taken(is_zero == (when == When::Zero), offset)
        }
        Plan::Address { rd, offset } => {
            regs.set_x(rd, address(relative(offset)));
            next
        }
        Plan::PageAddress { rd, pages } => {
            let page = address(place) & !0xfff;
            regs.set_x(rd, page.wrapping_add_signed(i64::from(pages) << 12));
            next
        }
        Plan::LoadLiteral { rt, literal, offset } => {
            regs.set_x(rt, load_literal(literal, relative(offset), memory)?);
            next
        }
        Plan::BranchRegister { rn, kind } => {
            let target = regs.x_or_zero(rn);
            branch(regs, target, kind, place);
            return Ok(());
        }
    };
    regs.pc = address(target);
    regs.set_btype(0);
    Ok(())
}

/// Branches to `target` from `place` as `br`, `blr` or `ret` does.
pub(crate) fn branch(regs: &mut PtRegs, target: u64, kind: BranchKind, place: CodeAddr) {
    let btype = match kind {
        BranchKind::Jump => BTYPE_JUMP,
        BranchKind::Call => {
            regs.x[30] = address(place.wrapping_add(4));
            BTYPE_CALL
        }
        BranchKind::Return => 0,
    };
    regs.set_btype(btype);
    regs.pc = target;
}

/// The address of a PC-relative label, as a register value.
pub(crate) fn address(at: CodeAddr) -> u64 {
    at.as_usize() as u64
}

/// Literals are data: they lie in the machine's data byte order (unlike the instructions around them).
fn load_literal<M: Memory>(literal: Literal, at: CodeAddr, memory: &M) -> Result<u64, MemFault> {
    if literal == Literal::Doubleword {
        let mut bytes = [0; 8];
        memory.read(at.as_usize(), &mut bytes)?;
        return Ok(u64::from_ne_bytes(bytes));
    }
    let mut bytes = [0; 4];
    memory.read(at.as_usize(), &mut bytes)?;
    let word = u32::from_ne_bytes(bytes);
    Ok(if literal == Literal::SignedWord { i64::from(word as i32) as u64 } else { u64::from(word) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::classify;
    use crate::regs::{PSTATE_BTYPE, PSTATE_C, PSTATE_Z};
    use crate::testing::{Bytes, NoMemory};
    use rstest::rstest;

    const PLACE: u64 = 0x40_1000;

    fn start() -> PtRegs {
        let mut regs = PtRegs { sp: 0x7000, pc: PLACE, pstate: PSTATE_Z | PSTATE_BTYPE, ..PtRegs::default() };
        for (index, x) in regs.x.iter_mut().enumerate() {
            *x = 0x1111_0000_0000_0000 + index as u64;
        }
        regs
    }

    fn run(word: u32, regs: &mut PtRegs) {
        let (plan, _) = classify(word).expect("a simulated instruction");
        simulate(&plan, CodeAddr::new(PLACE as usize), regs, &NoMemory).expect("no memory is touched");
    }

    /// Words and targets from `aarch64-linux-gnu-objdump`.
    #[rstest]
    #[case::b_forward(0x1400_0004, PLACE + 16)]
    #[case::b_back(0x17ff_fffc, PLACE - 16)]
    #[case::b_eq_taken(0x5400_0080, PLACE + 16)]
    #[case::b_ne_not_taken(0x5400_0081, PLACE + 4)]
    #[case::bc_eq_taken(0x5400_0090, PLACE + 16)]
    #[case::cbz_xzr_taken(0xb400_009f, PLACE + 16)]
    #[case::cbnz_x1_taken(0xb500_0081, PLACE + 16)]
    #[case::cbz_w0_taken_although_the_upper_half_is_not_zero(0x3400_0080, PLACE + 16)]
    #[case::cbz_x0_not_taken(0xb400_0080, PLACE + 4)]
    #[case::tbnz_x1_bit_60(0xb7e0_0081, PLACE + 16)]
    #[case::tbz_x1_bit_60(0xb6e0_0081, PLACE + 4)]
    #[case::tbz_w1_bit_1(0x3608_0081, PLACE + 16)]
    #[case::tbz_w1_bit_0(0x3600_0081, PLACE + 4)]
    #[case::nop(0xd503_201f, PLACE + 4)]
    #[case::bti_c(0xd503_245f, PLACE + 4)]
    #[case::prfm_literal(0xd800_0040, PLACE + 4)]
    fn only_the_program_counter_changes(#[case] word: u32, #[case] target: u64) {
        let mut regs = start();
        run(word, &mut regs);
        assert_eq!(regs, PtRegs { pc: target, pstate: PSTATE_Z, ..start() });
    }

    #[test]
    fn bl_links() {
        let mut regs = start();
        run(0x9400_0004, &mut regs);
        let mut want = PtRegs { pc: PLACE + 16, pstate: PSTATE_Z, ..start() };
        want.x[30] = PLACE + 4;
        assert_eq!(regs, want);
    }

    #[rstest]
    #[case::br_x3(0xd61f_0060, 3, BTYPE_JUMP, None)]
    #[case::br_x16(0xd61f_0200, 16, BTYPE_JUMP, None)]
    #[case::blr_x3(0xd63f_0060, 3, BTYPE_CALL, Some(PLACE + 4))]
    #[case::blr_x30(0xd63f_03c0, 30, BTYPE_CALL, Some(PLACE + 4))]
    #[case::ret(0xd65f_03c0, 30, 0, None)]
    #[case::ret_x3(0xd65f_0060, 3, 0, None)]
    fn indirect_branches_leave_btype(
        #[case] word: u32,
        #[case] rn: usize,
        #[case] btype: u64,
        #[case] link: Option<u64>,
    ) {
        let mut regs = start();
        run(word, &mut regs);
        let mut want = PtRegs { pc: start().x[rn], pstate: PSTATE_Z | btype, ..start() };
        if let Some(link) = link {
            want.x[30] = link;
        }
        assert_eq!(regs, want);
    }

    #[rstest]
    #[case::adr_x5_plus_1(0x3000_0005, 5, PLACE + 1)]
    #[case::adr_x5_back(0x10ff_ffe5, 5, PLACE - 4)]
    #[case::adrp_x5_here(0x9000_0005, 5, PLACE & !0xfff)]
    #[case::adrp_x5_next(0xb000_0005, 5, (PLACE & !0xfff) + 0x1000)]
    #[case::adrp_x5_lowest(0x9080_0005, 5, (PLACE & !0xfff).wrapping_sub(1 << 32))]
    fn addresses_are_taken_from_the_place(#[case] word: u32, #[case] rd: usize, #[case] value: u64) {
        let mut regs = start();
        run(word, &mut regs);
        let mut want = PtRegs { pc: PLACE + 4, pstate: PSTATE_Z, ..start() };
        want.x[rd] = value;
        assert_eq!(regs, want);
    }

    /// The page is that of the place, wherever in it the place lies.
    #[test]
    fn adrp_ignores_where_in_its_page_the_place_lies() {
        let mut regs = PtRegs { pc: PLACE + 0xabc, ..start() };
        let (plan, _) = classify(0xb000_0005).expect("simulated");
        simulate(&plan, CodeAddr::new(PLACE as usize + 0xabc), &mut regs, &NoMemory).expect("no memory");
        assert_eq!((regs.x[5], regs.pc), (PLACE + 0x1000, PLACE + 0xac0));
    }

    #[test]
    fn xzr_is_not_written() {
        let mut regs = start();
        run(0x1000_001f, &mut regs);
        assert_eq!(regs, PtRegs { pc: PLACE + 4, pstate: PSTATE_Z, ..start() });
    }

    #[rstest]
    #[case::ldr_w(0x1800_0045, 0xfedc_ba98)]
    #[case::ldr_x(0x5800_0045, 0x0123_4567_fedc_ba98)]
    #[case::ldrsw(0x9800_0045, 0xffff_ffff_fedc_ba98)]
    fn literals_are_loaded(#[case] word: u32, #[case] value: u64) {
        let data = if cfg!(target_endian = "little") || value >> 32 == 0x0123_4567 {
            0x0123_4567_fedc_ba98u64.to_ne_bytes()
        } else {
            // The 32-bit literal is the first four bytes in either byte order.
            0xfedc_ba98_0123_4567u64.to_ne_bytes()
        };
        let memory = Bytes::new(PLACE as usize + 8, &data);
        let mut regs = start();
        let (plan, _) = classify(word).expect("simulated");
        simulate(&plan, CodeAddr::new(PLACE as usize), &mut regs, &memory).expect("readable");
        let mut want = PtRegs { pc: PLACE + 4, pstate: PSTATE_Z, ..start() };
        want.x[5] = value;
        assert_eq!(regs, want);
    }

    #[test]
    fn a_literal_that_cannot_be_read_changes_nothing() {
        let mut regs = PtRegs { pstate: PSTATE_C, ..start() };
        let before = regs;
        let (plan, _) = classify(0x5800_0045).expect("simulated");
        let fault = simulate(&plan, CodeAddr::new(PLACE as usize), &mut regs, &NoMemory).unwrap_err();
        assert_eq!(fault.addr, PLACE as usize + 8);
        assert_eq!(regs, before);
    }
}
