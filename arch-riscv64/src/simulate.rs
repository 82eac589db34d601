//! The effect of a simulated instruction on the registers.
//!
//! Pure and allocation-free: on the hit path. Semantics: I 2.4.1, 2.5, 27.4. Targets are not checked for
//! alignment: with C every even address is one, and JALR clears bit 0 itself.

use crate::decode::{Condition, Plan};
use crate::regs::PtRegs;
use probe_core::CodeAddr;

/// Executes `plan` at `place`. None of it touches memory.
///
/// A slot's plan (which the core never passes) only moves the program counter on, by four bytes.
#[inline]
pub(crate) fn simulate(plan: &Plan, place: CodeAddr, regs: &mut PtRegs) {
    let next = |len_bytes: u8| address(place.wrapping_add(usize::from(len_bytes)));
    let relative = |offset: i32| address(place.wrapping_offset(offset as isize));
    regs.pc = match *plan {
        Plan::Nop { len_bytes } => next(len_bytes),
        Plan::OutOfLine | Plan::SystemCall => next(4),
        Plan::Address { rd, offset } => {
            regs.set_x(rd, relative(offset));
            next(4)
        }
        Plan::Jump { rd, offset } => {
            regs.set_x(rd, next(4));
            relative(offset)
        }
        Plan::JumpRegister { rd, rs1, offset, len_bytes } => {
            // rd may be rs1.
            let target = regs.x(rs1).wrapping_add_signed(i64::from(offset)) & !1;
            regs.set_x(rd, next(len_bytes));
            target
        }
        Plan::Branch { condition, rs1, rs2, offset, len_bytes } => {
            if holds(condition, regs.x(rs1), regs.x(rs2)) {
                relative(i32::from(offset))
            } else {
                next(len_bytes)
            }
        }
    };
}

const fn holds(condition: Condition, left: u64, right: u64) -> bool {
    match condition {
        Condition::Equal => left == right,
        Condition::NotEqual => left != right,
        Condition::Less => (left as i64) < right as i64,
        Condition::GreaterOrEqual => left as i64 >= right as i64,
        Condition::Below => left < right,
        Condition::AboveOrEqual => left >= right,
    }
}

/// A code address as a register value.
pub(crate) fn address(at: CodeAddr) -> u64 {
    at.as_usize() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::classify;
    use rstest::rstest;

    const PLACE: u64 = 0x40_1000;

    /// X1 is negative, X2 is 2, X3 is 3, X8 is zero, X9 is odd.
    fn start() -> PtRegs {
        let x1_to_x31 = core::array::from_fn(|index| index as u64 + 1);
        let mut regs = PtRegs { pc: PLACE, x1_to_x31, status: 0x120 };
        regs.set_x(1, u64::MAX);
        regs.set_x(8, 0);
        regs.set_x(9, 0x5001);
        regs
    }

    fn run(word: u32) -> PtRegs {
        let (plan, _) = classify(word).expect("a simulated instruction");
        let mut regs = start();
        simulate(&plan, CodeAddr::new(PLACE as usize), &mut regs);
        regs
    }

    /// Words and targets from `riscv64-linux-gnu-objdump`.
    #[rstest]
    #[case::beq_taken(0x0000_0863, 16)]
    #[case::beq_not_taken(0x0020_8863, 4)]
    #[case::bne_taken(0x0020_9863, 16)]
    #[case::bne_not_taken(0x0000_1863, 4)]
    #[case::blt_is_signed(0x0020_c863, 16)]
    #[case::blt_not_taken(0x0011_4863, 4)]
    #[case::bge_is_signed(0x0011_5863, 16)]
    #[case::bge_of_equals(0x0021_5863, 16)]
    #[case::bltu_is_unsigned(0x0011_6863, 16)]
    #[case::bltu_not_taken(0x0020_e863, 4)]
    #[case::bgeu_is_unsigned(0x0020_f863, 16)]
    #[case::bgeu_of_equals(0x0021_7863, 16)]
    #[case::beq_back(0xfe00_08e3, -16)]
    #[case::c_beqz_taken(0xc801, 16)]
    #[case::c_beqz_not_taken(0xc881, 2)]
    #[case::c_bnez_taken(0xe881, 16)]
    #[case::c_bnez_not_taken(0xe801, 2)]
    #[case::c_j(0xa801, 16)]
    #[case::c_j_back(0xbfc5, -16)]
    #[case::j(0x0100_006f, 16)]
    #[case::nop(0x0000_0013, 4)]
    #[case::c_nop(0x0001, 2)]
    fn only_the_program_counter_changes(#[case] word: u32, #[case] offset: i64) {
        assert_eq!(run(word), PtRegs { pc: PLACE.wrapping_add_signed(offset), ..start() });
    }

    #[rstest]
    #[case::jal_ra(0x0100_00ef, PLACE + 16, Some((1, PLACE + 4)))]
    #[case::jal_t0(0xff1f_f2ef, PLACE - 16, Some((5, PLACE + 4)))]
    #[case::jalr_ra_16_x2(0x0101_00e7, 18, Some((1, PLACE + 4)))]
    #[case::jalr_back(0xfff1_80e7, 2, Some((1, PLACE + 4)))]
    #[case::jalr_x3_x3(0x0001_81e7, 2, Some((3, PLACE + 4)))]
    #[case::jalr_clears_bit_0(0x0004_8067, 0x5000, None)]
    #[case::c_jr(0x8182, 2, None)]
    #[case::c_jalr(0x9182, 2, Some((1, PLACE + 2)))]
    #[case::c_jalr_ra(0x9082, u64::MAX - 1, Some((1, PLACE + 2)))]
    #[case::auipc_x5(0x0000_1297, PLACE + 4, Some((5, PLACE + 0x1000)))]
    #[case::auipc_back(0xffff_f297, PLACE + 4, Some((5, PLACE - 0x1000)))]
    #[case::auipc_lowest(0x8000_0297, PLACE + 4, Some((5, PLACE.wrapping_sub(1 << 31))))]
    fn one_register_changes_too(#[case] word: u32, #[case] pc: u64, #[case] written: Option<(u8, u64)>) {
        let mut want = PtRegs { pc, ..start() };
        if let Some((rd, value)) = written {
            want.set_x(rd, value);
        }
        // A code address has as many bits as the machine that runs this.
        let narrow = |regs: PtRegs| (regs.pc as usize, regs.x1_to_x31.map(|x| x as usize));
        assert_eq!(narrow(run(word)), narrow(want));
    }
}
