//! Coprocessors and floating point, which A32 and T32 encode alike but for the condition: A5.6, A7.5 to A7.9.

use super::{OUT_OF_LINE, Plan, SYSTEM_REGISTER, UNALLOCATED, UNPREDICTABLE};
use crate::insn::{self, bit, field, register};
use crate::regs::PC;
use probe_core::error::Refusal;

type Decision = Result<Plan, Refusal>;

/// Conditional ones, and those of T32 that begin with 0xec to 0xee.
pub(super) fn classify(word: u32) -> Decision {
    let coprocessor = field(word, 8, 4);
    let is_floating = matches!(coprocessor, 10 | 11);
    let (rt, rn) = (register(word, 12), register(word, 16));
    if insn::TWO_REGISTERS.matches(word) {
        return match coprocessor {
            _ if rt == PC || rn == PC => Err(UNPREDICTABLE),
            10 | 11 => Ok(OUT_OF_LINE),
            // MRRC of CNTPCT and CNTVCT (B8.2).
            15 if bit(word, 20) && field(word, 0, 4) == 14 && field(word, 4, 4) <= 1 => Ok(OUT_OF_LINE),
            14 | 15 => Err(SYSTEM_REGISTER),
            _ => Err(UNALLOCATED),
        };
    }
    if insn::COPROCESSOR_MEMORY.matches(word) {
        // P, U and W all zero is nothing but the moves above.
        let is_allocated = field(word, 21, 4) & 0b1101 != 0;
        return match coprocessor {
            10 | 11 if is_allocated && rn == PC && bit(word, 21) => Err(UNPREDICTABLE),
            10 | 11 if is_allocated && rn == PC => Ok(Plan::Borrow),
            10 | 11 if is_allocated => Ok(OUT_OF_LINE),
            14 => Err(SYSTEM_REGISTER),
            _ => Err(UNALLOCATED),
        };
    }
    if insn::COPROCESSOR_DATA.matches(word) {
        return if is_floating { Ok(OUT_OF_LINE) } else { Err(UNALLOCATED) };
    }
    if !insn::COPROCESSOR_REGISTER.matches(word) {
        return Err(UNALLOCATED);
    }
    if insn::VMRS_FLAGS.matches(word) {
        return Ok(OUT_OF_LINE);
    }
    match coprocessor {
        _ if rt == PC => Err(UNPREDICTABLE),
        // FPSCR alone; the others are for privileged code or say what there is.
        10 if insn::FLOATING_SYSTEM.matches(word) => {
            if rn == 1 {
                Ok(OUT_OF_LINE)
            } else {
                Err(SYSTEM_REGISTER)
            }
        }
        10 | 11 => Ok(OUT_OF_LINE),
        15 if is_known_register(word) => Ok(OUT_OF_LINE),
        14 | 15 => Err(SYSTEM_REGISTER),
        _ => Err(UNALLOCATED),
    }
}

/// MCR and MRC of CP15: an allow-list by CRn, opc1, CRm, opc2 (B3.17).
fn is_known_register(word: u32) -> bool {
    let is_read = bit(word, 20);
    let name = (field(word, 16, 4), field(word, 21, 3), field(word, 0, 4), field(word, 5, 3));
    match name {
        // TPIDRURW, TPIDRURO, TPIDRPRW.
        (13, 0, 0, 2..=4) => is_read,
        // CP15ISB, CP15DSB, CP15DMB.
        (7, 0, 5, 4) | (7, 0, 10, 4 | 5) => !is_read,
        // PMCCNTR.
        (9, 0, 13, 0) => is_read,
        _ => false,
    }
}

/// Unconditional ones, and those of T32 that begin with 0xfc to 0xfe: the floating point of ARMv8, such as
/// VSEL (DDI 0487 F4.1.22), and MCR2 and its like.
pub(super) fn unconditional(word: u32) -> Decision {
    match field(word, 8, 4) {
        10 | 11 if insn::COPROCESSOR_DATA.matches(word) => Ok(OUT_OF_LINE),
        14 | 15 if field(word, 26, 2) == 0b11 => Err(SYSTEM_REGISTER),
        _ => Err(UNALLOCATED),
    }
}
