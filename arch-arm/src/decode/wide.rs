//! T32 instructions of four bytes: A6.3.

use super::a32::{addressing, hint};
use super::narrow::{literal, load_multiple};
use super::{
    Access, Addressing, BREAKPOINT, Condition, EXCEPTION_RETURN, OTHER_CALL, OUT_OF_LINE, Offset,
    PROCESSOR_STATE, Plan, RESERVATION, SYSTEM_REGISTER, Shift, UNALLOCATED, UNDEFINED, UNPREDICTABLE,
    coprocessor,
};
use crate::insn::{self, bit, field, register};
use crate::regs::{LR, PC, SP};
use probe_core::error::Refusal;

type Decision = Result<Plan, Refusal>;

/// A6.3.
pub(super) fn classify(word: u32) -> Decision {
    if insn::T_SIMD_DATA.matches(word) {
        return Ok(OUT_OF_LINE);
    }
    if insn::T_COPROCESSOR.matches(word) {
        return if bit(word, 28) { coprocessor::unconditional(word) } else { coprocessor::classify(word) };
    }
    if insn::T_MULTIPLE.matches(word) {
        return multiple(word);
    }
    if insn::T_DUAL.matches(word) {
        return dual(word);
    }
    if insn::T_DATA_SHIFTED.matches(word) {
        return shifted(word);
    }
    if insn::T_DATA_IMMEDIATE.matches(word) {
        return data(word, false);
    }
    if insn::T_PLAIN_IMMEDIATE.matches(word) {
        return plain_immediate(word);
    }
    if insn::T_WIDE_BRANCHES.matches(word) {
        return branches(word);
    }
    if insn::T_SIMD_MEMORY.matches(word) {
        return without_pc(word, &[RN]);
    }
    if insn::T_MEMORY.matches(word) {
        return memory(word);
    }
    if insn::T_DATA_REGISTER.matches(word) {
        return register_operation(word);
    }
    if insn::T_MULTIPLY.matches(word) {
        // With Ra 15 nothing is added; from nothing MLS takes nothing away.
        let is_mls = field(word, 20, 3) == 0 && field(word, 4, 4) == 1;
        return without_pc(word, if is_mls { &[RN, RT, RD, RM] } else { &[RN, RD, RM] });
    }
    if insn::T_LONG_MULTIPLY.matches(word) {
        return long_multiply(word);
    }
    Err(UNALLOCATED)
}

/// Where registers stand in most encodings.
const RN: u32 = 16;
const RT: u32 = 12;
const RD: u32 = 8;
const RM: u32 = 0;

fn without_pc(word: u32, registers: &[u32]) -> Decision {
    if registers.iter().any(|low| register(word, *low) == PC) { Err(UNPREDICTABLE) } else { Ok(OUT_OF_LINE) }
}

/// A6.3.5.
fn multiple(word: u32) -> Decision {
    let (loads, writes_back, goes_up) = (bit(word, 20), bit(word, 21), bit(word, 23));
    if goes_up == bit(word, 24) {
        return Err(if loads { EXCEPTION_RETURN } else { PROCESSOR_STATE });
    }
    let registers = field(word, 0, 16) as u16;
    let rn = register(word, RN);
    let has = |number: u8| registers >> number & 1 == 1;
    let is_defined = rn != PC
        && registers.count_ones() >= 2
        && !has(SP)
        && if loads { !(has(PC) && has(LR)) } else { !has(PC) }
        && !(writes_back && has(rn));
    match (is_defined, has(PC)) {
        (false, _) => Err(UNPREDICTABLE),
        (true, false) => Ok(OUT_OF_LINE),
        (true, true) => Ok(load_multiple(rn, goes_up, writes_back, registers, 4)),
    }
}

/// A6.3.6.
fn dual(word: u32) -> Decision {
    if insn::T_TABLE.matches(word) {
        let (rn, rm) = (register(word, RN), register(word, RM));
        let plan = Plan::Table { rn, rm, of_halfwords: bit(word, 4) };
        return if matches!(rm, SP | PC) || rn == SP { Err(UNPREDICTABLE) } else { Ok(plan) };
    }
    if insn::T_ORDERED.matches(word) && field(word, 4, 2) != 3 {
        return without_pc(word, &[RN, RT]);
    }
    let is_exclusive = [insn::T_LDREX, insn::T_STREX, insn::T_LOAD_EXCLUSIVE, insn::T_STORE_EXCLUSIVE]
        .iter()
        .any(|class| class.matches(word));
    if is_exclusive {
        return Err(RESERVATION);
    }
    if !bit(word, 24) && !bit(word, 21) {
        return Err(UNALLOCATED);
    }
    let (rn, rt, rt2) = (register(word, RN), register(word, RT), register(word, RD));
    let loads = bit(word, 20);
    let writes_back = bit(word, 21) || !bit(word, 24);
    if matches!(rt, SP | PC) || matches!(rt2, SP | PC) || rn == PC && (!loads || writes_back) {
        return Err(UNPREDICTABLE);
    }
    if rn != PC {
        return Ok(OUT_OF_LINE);
    }
    let distance = 4 * field(word, 0, 8) as i16;
    let distance = if bit(word, 23) { distance } else { -distance };
    Ok(literal(Access::LoadPair, rt, rt2, distance, 4))
}

/// A6.3.11: operations as their numbers are allocated.
fn shifted(word: u32) -> Decision {
    let is_allocated =
        matches!(field(word, 21, 4), 0b0000..=0b0100 | 0b0110 | 0b1000 | 0b1010 | 0b1011 | 0b1101 | 0b1110);
    match register(word, RM) {
        _ if !is_allocated => Err(UNALLOCATED),
        PC => Err(UNPREDICTABLE),
        _ => data(word, true),
    }
}

/// A6.3.1, A6.3.11: Rd 15 is TST, TEQ, CMP, CMN; Rn 15 is MOV, MVN.
fn data(word: u32, is_shifted: bool) -> Decision {
    let operation = field(word, 21, 4);
    let is_allocated = matches!(operation, 0b0000..=0b0100 | 0b1000 | 0b1010 | 0b1011 | 0b1101 | 0b1110)
        || is_shifted && operation == 0b0110;
    if !is_allocated {
        return Err(UNALLOCATED);
    }
    let compares = matches!(operation, 0b0000 | 0b0100 | 0b1000 | 0b1101) && bit(word, 20);
    let moves = matches!(operation, 0b0010 | 0b0011);
    let is_undefined = register(word, RD) == PC && !compares || register(word, RN) == PC && !moves;
    if is_undefined { Err(UNPREDICTABLE) } else { Ok(OUT_OF_LINE) }
}

/// A6.3.3.
fn plain_immediate(word: u32) -> Decision {
    let rd = register(word, RD);
    let is_pc = register(word, RN) == PC;
    match field(word, 20, 5) {
        _ if rd == PC => Err(UNPREDICTABLE),
        operation @ (0b00000 | 0b01010) if is_pc => {
            let distance = (field(word, 26, 1) << 11 | field(word, 12, 3) << 8 | field(word, 0, 8)) as i16;
            let offset = if operation == 0 { distance } else { -distance };
            Ok(Plan::Address { rd, len_bytes: 4, offset })
        }
        0b00000 | 0b01010 | 0b00100 | 0b01100 => Ok(OUT_OF_LINE),
        // BFI; of Rn 15 it is BFC.
        0b10110 => Ok(OUT_OF_LINE),
        // SSAT, SSAT16, SBFX, USAT, USAT16, UBFX.
        0b10000 | 0b10010 | 0b10100 | 0b11000 | 0b11010 | 0b11100 => without_pc(word, &[RN]),
        _ => Err(UNALLOCATED),
    }
}

/// A6.3.4.
fn branches(word: u32) -> Decision {
    let condition = Condition::ALWAYS;
    let branch = |condition, links, exchanges, offset| {
        Ok(Plan::Branch { condition, links, exchanges, len_bytes: 4, offset })
    };
    if insn::T_WIDE_B.matches(word) {
        return branch(condition, false, false, insn::wide_offset(word));
    }
    if insn::T_WIDE_BL.matches(word) {
        return branch(condition, true, false, insn::wide_offset(word));
    }
    if insn::T_WIDE_BLX.matches(word) {
        return branch(condition, true, true, insn::wide_offset(word));
    }
    if insn::T_WIDE_CONDITIONAL.matches(word) && field(word, 23, 3) != 0b111 {
        let condition = Condition(field(word, 22, 4) as u8);
        return branch(condition, false, false, insn::wide_conditional_offset(word));
    }
    system(word)
}

/// What is encoded beside the branches (A6.3.4).
fn system(word: u32) -> Decision {
    let condition = Condition::ALWAYS;
    if insn::T_DEBUGGER_WIDE.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::T_WIDE_UDF.matches(word) {
        return Err(UNDEFINED);
    }
    if insn::T_HVC.matches(word) || insn::T_SMC.matches(word) {
        return Err(OTHER_CALL);
    }
    if insn::T_MSR.matches(word) {
        // As A32's; the mask is in the second half.
        let is_other = bit(word, 20) || bit(word, 5);
        return match (is_other, field(word, 8, 4)) {
            (true, _) => Err(SYSTEM_REGISTER),
            (false, _) if matches!(register(word, RN), SP | PC) => Err(UNPREDICTABLE),
            (false, 0b0100 | 0b1000 | 0b1100) => Ok(OUT_OF_LINE),
            (false, _) => Err(PROCESSOR_STATE),
        };
    }
    if insn::T_HINT.matches(word) {
        return hint(field(word, 0, 8), 4);
    }
    if insn::T_WIDE_CPS.matches(word) {
        return Err(PROCESSOR_STATE);
    }
    if insn::T_CLREX.matches(word) {
        return Err(RESERVATION);
    }
    // DSB, DMB, ISB; the fourth of them is SB, which no ARMv7 has.
    if insn::T_BARRIER.matches(word) {
        return if field(word, 4, 2) == 3 { Err(UNALLOCATED) } else { Ok(OUT_OF_LINE) };
    }
    if insn::T_BXJ.matches(word) {
        let rm = register(word, RN);
        let plan = Plan::BranchRegister { condition, links: false, rm, len_bytes: 4 };
        return if matches!(rm, SP | PC) { Err(UNPREDICTABLE) } else { Ok(plan) };
    }
    if insn::T_EXCEPTION_RETURN.matches(word) {
        return Err(EXCEPTION_RETURN);
    }
    if insn::T_MRS.matches(word) {
        return match register(word, RD) {
            SP | PC => Err(UNPREDICTABLE),
            rd => Ok(Plan::Status { condition, rd }),
        };
    }
    if insn::T_MRS_ANY.matches(word) {
        return Err(SYSTEM_REGISTER);
    }
    Err(UNALLOCATED)
}

/// A6.3.7 to A6.3.10.
fn memory(word: u32) -> Decision {
    let (rn, rt) = (register(word, RN), register(word, RT));
    let (loads, is_signed) = (bit(word, 20), bit(word, 24));
    let size = field(word, 21, 2);
    if size == 3 || !loads && is_signed || size == 2 && is_signed {
        return Err(UNALLOCATED);
    }
    if !loads {
        return if rn == PC { Err(UNDEFINED) } else { indexed(word).and_then(|_| without_pc(word, &[RT])) };
    }
    let is_word = size == 2;
    if rn == PC {
        let distance = field(word, 0, 12) as i16;
        let distance = if bit(word, 23) { distance } else { -distance };
        let access = match (size, is_signed) {
            // Preloads, and what has no effect beside them.
            (0 | 1, _) if rt == PC => return Ok(Plan::Nop { len_bytes: 4 }),
            (0, false) => Access::LoadByte,
            (0, true) => Access::LoadSignedByte,
            (1, false) => Access::LoadHalf,
            (1, true) => Access::LoadSignedHalf,
            _ => Access::Load,
        };
        return Ok(literal(access, rt, 0, distance, 4));
    }
    let form = indexed(word)?;
    match (rt, form) {
        (PC, Some((addressing, offset))) if is_word => {
            let (condition, access) = (Condition::ALWAYS, Access::Load);
            Ok(Plan::Transfer { condition, access, rt, rt2: 0, rn, addressing, offset, len_bytes: 4 })
        }
        // A preload changes no register.
        (PC, Some((Addressing::Offset, _))) if !is_word => Ok(OUT_OF_LINE),
        (PC, _) => Err(UNPREDICTABLE),
        _ => Ok(OUT_OF_LINE),
    }
}

/// The form of an address that is not relative to the program counter; `None` for the unprivileged ones.
fn indexed(word: u32) -> Result<Option<(Addressing, Offset)>, Refusal> {
    if bit(word, 23) {
        return Ok(Some((Addressing::Offset, Offset::Immediate(field(word, 0, 12) as i16))));
    }
    if bit(word, 11) {
        let distance = field(word, 0, 8) as i16;
        let distance = if bit(word, 9) { distance } else { -distance };
        return match addressing(word, 10, 8) {
            // LDRT and its like.
            Some(Addressing::Offset) if bit(word, 9) => Ok(None),
            // Post-indexed has W.
            Some(Addressing::After) => Err(UNALLOCATED),
            Some(addressing) => is_write_back_defined(word, addressing, distance),
            None => is_write_back_defined(word, Addressing::After, distance),
        };
    }
    if field(word, 6, 5) != 0 {
        return Err(UNALLOCATED);
    }
    let rm = register(word, RM);
    if matches!(rm, SP | PC) {
        return Err(UNPREDICTABLE);
    }
    let offset = Offset::Register { rm, shift: Shift::Left, amount: field(word, 4, 2) as u8 };
    Ok(Some((Addressing::Offset, offset)))
}

fn is_write_back_defined(
    word: u32,
    addressing: Addressing,
    distance: i16,
) -> Result<Option<(Addressing, Offset)>, Refusal> {
    if addressing != Addressing::Offset && register(word, RN) == register(word, RT) {
        return Err(UNPREDICTABLE);
    }
    Ok(Some((addressing, Offset::Immediate(distance))))
}

/// A6.3.12 to A6.3.15; CRC32 (DDI 0487 F3.1.11).
fn register_operation(word: u32) -> Decision {
    let (op1, op2) = (field(word, 20, 4), field(word, 4, 4));
    let is_allocated = match (op1, op2) {
        // LSL, LSR, ASR, ROR.
        (0..=7, 0) => true,
        // SXTAH, UXTAH, SXTAB16, UXTAB16, SXTAB, UXTAB.
        (0..=5, 8..) => true,
        // Parallel arithmetic.
        (8..=10 | 12..=14, 0..=2 | 4..=6) => true,
        // QADD to QDSUB; REV to REVSH; SEL; CLZ; CRC32, CRC32C.
        (8 | 9, 8..=11) | (10 | 11, 8) => true,
        (12 | 13, 8..=10) => true,
        _ => false,
    };
    // With Rn 15 extension adds nothing.
    let is_extension = op1 <= 5 && op2 >= 8;
    match is_allocated {
        false => Err(UNALLOCATED),
        true if is_extension => without_pc(word, &[RD, RM]),
        true => without_pc(word, &[RN, RD, RM]),
    }
}

/// A6.3.17.
fn long_multiply(word: u32) -> Decision {
    match (field(word, 20, 3), field(word, 4, 4)) {
        // SDIV, UDIV: the lower destination is 15.
        (0b001 | 0b011, 0b1111) => without_pc(word, &[RN, RD, RM]),
        // SMULL, UMULL, SMLAL, SMLALxy, SMLALD, SMLSLD, UMLAL, UMAAL.
        (0b000 | 0b010 | 0b100 | 0b110, 0b0000)
        | (0b100, 0b1000..=0b1101)
        | (0b101, 0b1100 | 0b1101)
        | (0b110, 0b0110) => without_pc(word, &[RN, RT, RD, RM]),
        _ => Err(UNALLOCATED),
    }
}
