//! T32 instructions of two bytes: A6.2.

use super::a32::hint;
use super::{
    Access, Addressing, BREAKPOINT, Condition, OUT_OF_LINE, Offset, Operand, PROCESSOR_STATE, Plan,
    SYSTEM_CALL, Shift, UNALLOCATED, UNDEFINED, UNPREDICTABLE,
};
use crate::insn::{self, bit, field, register};
use crate::regs::{PC, SP};
use probe_core::error::Refusal;

type Decision = Result<Plan, Refusal>;

/// A6.2.
pub(super) fn classify(word: u32) -> Decision {
    const ALWAYS: Condition = Condition::ALWAYS;
    // Shifts, ADD, SUB, MOV, CMP; data processing: R0 to R7.
    if word < 0x4400 {
        return Ok(OUT_OF_LINE);
    }
    if word < 0x4800 {
        return high_registers(word);
    }
    if insn::T_LITERAL.matches(word) {
        let rt = field(word, 8, 3) as u8;
        return Ok(literal(Access::Load, rt, 0, 4 * field(word, 0, 8) as i16, 2));
    }
    // Loads and stores: R0 to R7, SP as the base.
    if word < 0xa000 {
        return Ok(OUT_OF_LINE);
    }
    if insn::T_ADR.matches(word) {
        let offset = 4 * field(word, 0, 8) as i16;
        return Ok(Plan::Address { rd: field(word, 8, 3) as u8, len_bytes: 2, offset });
    }
    // ADD to SP.
    if word < 0xb000 {
        return Ok(OUT_OF_LINE);
    }
    if word < 0xc000 {
        return various(word);
    }
    // LDM, STM: R0 to R7.
    if word < 0xd000 {
        return if field(word, 0, 8) == 0 { Err(UNPREDICTABLE) } else { Ok(OUT_OF_LINE) };
    }
    if insn::T_DEBUGGER.matches(word) || insn::T_LINUX_PROBE.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::T_UDF.matches(word) {
        return Err(UNDEFINED);
    }
    if insn::T_SVC.matches(word) {
        return Ok(SYSTEM_CALL);
    }
    let branch =
        |condition, offset| Plan::Branch { condition, links: false, exchanges: false, len_bytes: 2, offset };
    if insn::T_CONDITIONAL.matches(word) {
        return Ok(branch(Condition(field(word, 8, 4) as u8), insn::signed(field(word, 0, 8) << 1, 9)));
    }
    if insn::T_BRANCH.matches(word) {
        return Ok(branch(ALWAYS, insn::signed(field(word, 0, 11) << 1, 12)));
    }
    Err(UNALLOCATED)
}

/// A6.2.3.
fn high_registers(word: u32) -> Decision {
    let condition = Condition::ALWAYS;
    let rm = register(word, 3);
    if insn::T_BX.matches(word) || insn::T_BLX.matches(word) {
        let links = insn::T_BLX.matches(word);
        let plan = Plan::BranchRegister { condition, links, rm, len_bytes: 2 };
        return if links && rm == PC { Err(UNPREDICTABLE) } else { Ok(plan) };
    }
    let rd = (field(word, 7, 1) << 3 | field(word, 0, 3)) as u8;
    // As A32 numbers them: ADD, CMP, MOV.
    let (operation, sets_flags, rn) = if insn::T_ADD.matches(word) {
        (0b0100, false, rd)
    } else if insn::T_CMP.matches(word) {
        (0b1010, true, rd)
    } else if insn::T_MOV.matches(word) {
        (0b1101, false, 0)
    } else {
        return Err(UNALLOCATED);
    };
    if rd != PC && rm != PC {
        return Ok(OUT_OF_LINE);
    }
    if insn::T_CMP.matches(word) || insn::T_ADD.matches(word) && rd == PC && rm == PC {
        return Err(UNPREDICTABLE);
    }
    let operand = Operand::Register { rm, shift: Shift::Left, amount: 0 };
    Ok(Plan::Data { condition, operation, sets_flags, rd, rn, operand, len_bytes: 2 })
}

/// A6.2.5.
fn various(word: u32) -> Decision {
    if insn::T_COMPARE_BRANCH.matches(word) {
        let offset = (field(word, 9, 1) << 6 | field(word, 3, 5) << 1) as u8;
        return Ok(Plan::CompareBranch { rn: field(word, 0, 3) as u8, on_nonzero: bit(word, 11), offset });
    }
    if insn::T_POP.matches(word) {
        return match (field(word, 0, 8), bit(word, 8)) {
            (0, false) => Err(UNPREDICTABLE),
            (_, false) => Ok(OUT_OF_LINE),
            (low, true) => Ok(load_multiple(SP, true, true, low as u16 | 1 << PC, 2)),
        };
    }
    if insn::T_PUSH.matches(word) {
        return if field(word, 0, 9) == 0 { Err(UNPREDICTABLE) } else { Ok(OUT_OF_LINE) };
    }
    if insn::T_SETEND.matches(word) || insn::T_CPS.matches(word) {
        return Err(PROCESSOR_STATE);
    }
    if insn::T_BKPT.matches(word) || insn::T_HLT.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::T_IT.matches(word) {
        let state = field(word, 0, 8) as u8;
        // A8.8.54: never is no condition, and always has no else.
        let is_undefined = state >> 4 == 15 || state >> 4 == 14 && (state & 0xf).count_ones() != 1;
        return match (state & 0xf, is_undefined) {
            (0, _) => hint(u32::from(state >> 4), 2),
            (_, true) => Err(UNPREDICTABLE),
            (_, false) => Ok(Plan::If { state }),
        };
    }
    match field(word, 6, 6) {
        // ADD, SUB to SP; SXTH, SXTB, UXTH, UXTB; REV, REV16, REVSH.
        0b000000..=0b000011 | 0b001000..=0b001011 | 0b101000 | 0b101001 | 0b101011 => Ok(OUT_OF_LINE),
        _ => Err(UNALLOCATED),
    }
}

/// A load relative to the word that the program counter is in.
pub(super) fn literal(access: Access, rt: u8, rt2: u8, offset: i16, len_bytes: u8) -> Plan {
    let (condition, addressing) = (Condition::ALWAYS, Addressing::Offset);
    Plan::Transfer {
        condition,
        access,
        rt,
        rt2,
        rn: PC,
        addressing,
        offset: Offset::Immediate(offset),
        len_bytes,
    }
}

pub(super) fn load_multiple(rn: u8, goes_up: bool, writes_back: bool, registers: u16, len_bytes: u8) -> Plan {
    let condition = Condition::ALWAYS;
    Plan::Multiple {
        condition,
        loads: true,
        rn,
        goes_up,
        is_before: !goes_up,
        writes_back,
        len_bytes,
        registers,
    }
}
