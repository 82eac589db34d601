//! A32: A5.

use super::{
    Access, Addressing, BREAKPOINT, Condition, EXCEPTION_RETURN, OTHER_CALL, OUT_OF_LINE, Offset, Operand,
    PROCESSOR_STATE, Plan, RESERVATION, SYSTEM_CALL, SYSTEM_REGISTER, UNALLOCATED, UNDEFINED, UNPREDICTABLE,
    coprocessor, immediate_shift,
};
use crate::insn::{self, bit, field, register};
use crate::regs::PC;
use probe_core::error::Refusal;

type Decision = Result<Plan, Refusal>;

/// Where registers stand in most encodings.
const RN: u32 = 16;
const RD: u32 = 12;
const RS: u32 = 8;
const RM: u32 = 0;

pub(super) fn classify(word: u32) -> Decision {
    if insn::UNCONDITIONAL.matches(word) {
        return unconditional(word);
    }
    let condition = Condition(field(word, 28, 4) as u8);
    if insn::DATA_REGISTER.matches(word) || insn::DATA_SHIFTED.matches(word) {
        // TST to CMN without the flags are other instructions.
        return if field(word, 23, 2) == 0b10 && !bit(word, 20) {
            miscellaneous(word, condition)
        } else {
            data(word, condition)
        };
    }
    if insn::EXTRA_MEMORY.matches(word) {
        return if field(word, 5, 2) == 0 {
            multiply_or_exclusive(word)
        } else {
            extra_memory(word, condition)
        };
    }
    if insn::DATA_IMMEDIATE.matches(word) {
        return immediate(word, condition);
    }
    if insn::MEMORY_IMMEDIATE.matches(word) || insn::MEMORY_REGISTER.matches(word) {
        return memory(word, condition);
    }
    if insn::MEDIA.matches(word) {
        return media(word);
    }
    if insn::MULTIPLE.matches(word) {
        return multiple(word, condition);
    }
    if insn::BRANCH.matches(word) {
        let offset = insn::signed(field(word, 0, 24) << 2, 26);
        return Ok(Plan::Branch { condition, links: bit(word, 24), exchanges: false, len_bytes: 4, offset });
    }
    if insn::DEBUGGER_CALL.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::SVC.matches(word) {
        return Ok(SYSTEM_CALL);
    }
    coprocessor::classify(word)
}

/// Out of line, if none of the registers at these places is the program counter.
fn without_pc(word: u32, registers: &[u32]) -> Decision {
    if registers.iter().any(|low| register(word, *low) == PC) { Err(UNPREDICTABLE) } else { Ok(OUT_OF_LINE) }
}

/// A5.7.
fn unconditional(word: u32) -> Decision {
    if insn::BLX_IMMEDIATE.matches(word) {
        let offset = insn::signed(field(word, 0, 24) << 2, 26) + i32::from(bit(word, 24)) * 2;
        let condition = Condition::ALWAYS;
        return Ok(Plan::Branch { condition, links: true, exchanges: true, len_bytes: 4, offset });
    }
    // With a register as the offset: one bit more.
    let immediate = word & !(1 << 25);
    let is_preload = if bit(word, 25) { !bit(word, 4) } else { true }
        && [insn::PRELOAD, insn::PRELOAD_WRITE, insn::PRELOAD_INSTRUCTION]
            .iter()
            .any(|class| class.matches(immediate));
    if is_preload {
        return match (register(word, RN), bit(word, 25)) {
            (PC, false) => Ok(Plan::Nop { len_bytes: 4 }),
            (_, false) => Ok(OUT_OF_LINE),
            (_, true) => without_pc(word, &[RN, RM]),
        };
    }
    if insn::CLREX.matches(word) {
        return Err(RESERVATION);
    }
    if insn::DSB.matches(word) || insn::DMB.matches(word) || insn::ISB.matches(word) {
        return Ok(OUT_OF_LINE);
    }
    if insn::CPS.matches(word) || insn::SRS.matches(word) {
        return Err(PROCESSOR_STATE);
    }
    if insn::RFE.matches(word) {
        return Err(EXCEPTION_RETURN);
    }
    if insn::SIMD_DATA.matches(word) {
        return Ok(OUT_OF_LINE);
    }
    if insn::SIMD_MEMORY.matches(word) {
        // Rm 15 says that there is no write-back.
        return without_pc(word, &[RN]);
    }
    coprocessor::unconditional(word)
}

/// A5.2.12.
fn miscellaneous(word: u32, condition: Condition) -> Decision {
    if insn::HALFWORD_MULTIPLY.matches(word) {
        return without_pc(word, &[RN, RD, RS, RM]);
    }
    if insn::BKPT.matches(word) || insn::HLT.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::MRS.matches(word) {
        return match register(word, RD) {
            PC => Err(UNPREDICTABLE),
            rd => Ok(Plan::Status { condition, rd }),
        };
    }
    if insn::MSR_REGISTER.matches(word) {
        return if register(word, RM) == PC { Err(UNPREDICTABLE) } else { status_write(word) };
    }
    if insn::MRS_ANY.matches(word) {
        return Err(SYSTEM_REGISTER);
    }
    for (class, links) in [(insn::BX, false), (insn::BXJ, false), (insn::BLX, true)] {
        if class.matches(word) {
            let rm = register(word, RM);
            // BX PC goes on in A32, eight bytes further.
            let is_defined = rm != PC || insn::BX.matches(word);
            let plan = Plan::BranchRegister { condition, links, rm, len_bytes: 4 };
            return if is_defined { Ok(plan) } else { Err(UNPREDICTABLE) };
        }
    }
    if insn::CLZ.matches(word) {
        return without_pc(word, &[RD, RM]);
    }
    if insn::CRC32.matches(word) || insn::SATURATING.matches(word) {
        return without_pc(word, &[RN, RD, RM]);
    }
    if insn::ERET.matches(word) {
        return Err(EXCEPTION_RETURN);
    }
    if insn::HVC.matches(word) || insn::SMC.matches(word) {
        return Err(OTHER_CALL);
    }
    Err(UNALLOCATED)
}

/// MSR: the flags alone, in CPSR (A8.8.111).
fn status_write(word: u32) -> Decision {
    let is_banked = insn::MSR_REGISTER.matches(word) && bit(word, 9);
    // The mask: f and s, the flags and GE; x and c, the control bits.
    let (is_spsr, mask) = (bit(word, 22), field(word, 16, 4));
    match (is_spsr || is_banked, mask) {
        (false, 0b0100 | 0b1000 | 0b1100) => Ok(OUT_OF_LINE),
        (false, 0) => Err(UNPREDICTABLE),
        (false, _) => Err(PROCESSOR_STATE),
        (true, _) => Err(SYSTEM_REGISTER),
    }
}

/// A5.2.5, A5.2.10.
fn multiply_or_exclusive(word: u32) -> Decision {
    if insn::MULTIPLY.matches(word) {
        let is_allocated = !matches!(field(word, 20, 4), 0b0101 | 0b0111);
        return if is_allocated { without_pc(word, &[RN, RD, RS, RM]) } else { Err(UNALLOCATED) };
    }
    if insn::SWAP.matches(word) {
        return without_pc(word, &[RN, RD, RM]);
    }
    if insn::LOAD_ACQUIRE.matches(word) {
        return without_pc(word, &[RN, RD]);
    }
    if insn::STORE_RELEASE.matches(word) {
        return without_pc(word, &[RN, RM]);
    }
    if insn::EXCLUSIVE.matches(word) { Err(RESERVATION) } else { Err(UNALLOCATED) }
}

/// How an address is made, from the bits P and W (A5.3): `None` for the unprivileged forms.
pub(super) fn addressing(word: u32, p: u32, w: u32) -> Option<Addressing> {
    match (bit(word, p), bit(word, w)) {
        (true, false) => Some(Addressing::Offset),
        (true, true) => Some(Addressing::Before),
        (false, false) => Some(Addressing::After),
        (false, true) => None,
    }
}

/// A5.2.8, A5.2.9.
fn extra_memory(word: u32, condition: Condition) -> Decision {
    let access = match (field(word, 5, 2), bit(word, 20)) {
        (0b01, false) => Access::StoreHalf,
        (0b01, true) => Access::LoadHalf,
        (0b10, false) => Access::LoadPair,
        (0b10, true) => Access::LoadSignedByte,
        (_, false) => Access::StorePair,
        (_, true) => Access::LoadSignedHalf,
    };
    let is_pair = matches!(access, Access::LoadPair | Access::StorePair);
    let (rn, rt, rm) = (register(word, RN), register(word, RD), register(word, RM));
    let has_register = !bit(word, 22);
    let Some(addressing) = addressing(word, 24, 21) else {
        let registers: &[u32] = if has_register { &[RN, RD, RM] } else { &[RN, RD] };
        return if is_pair { Err(UNALLOCATED) } else { without_pc(word, registers) };
    };
    let is_undefined = rt == PC || has_register && rm == PC || is_pair && (rt & 1 == 1 || rt == 14);
    if is_undefined || rn == PC && addressing != Addressing::Offset {
        return Err(UNPREDICTABLE);
    }
    if rn != PC {
        return Ok(OUT_OF_LINE);
    }
    let offset = if has_register {
        let subtracted = if bit(word, 23) { 0 } else { Offset::SUBTRACTED };
        Offset::Register { rm, shift: super::Shift::Left, amount: subtracted }
    } else {
        let distance = (field(word, 8, 4) << 4 | field(word, 0, 4)) as i16;
        Offset::Immediate(if bit(word, 23) { distance } else { -distance })
    };
    Ok(Plan::Transfer { condition, access, rt, rt2: (rt + 1) & 15, rn, addressing, offset, len_bytes: 4 })
}

/// A5.2, immediates: A5.2.3, A5.2.11.
fn immediate(word: u32, condition: Condition) -> Decision {
    if insn::MOVW.matches(word) || insn::MOVT.matches(word) {
        return without_pc(word, &[RD]);
    }
    if insn::HINT.matches(word) {
        return hint(field(word, 0, 8), 4);
    }
    if insn::MSR_IMMEDIATE.matches(word) {
        return status_write(word);
    }
    data(word, condition)
}

/// NOP, YIELD, WFE, WFI, SEV, SEVL, ESB, CSDB, DBG (A5.2.11; DDI 0487 F4.1.4). What is not allocated is NOP.
pub(super) fn hint(number: u32, len_bytes: u8) -> Decision {
    Ok(if number == 0 { Plan::Nop { len_bytes } } else { OUT_OF_LINE })
}

/// A5.2.1 to A5.2.3.
fn data(word: u32, condition: Condition) -> Decision {
    let operation = field(word, 21, 4) as u8;
    let sets_flags = bit(word, 20);
    let (rd, rn) = (register(word, RD), register(word, RN));
    // TST, TEQ, CMP, CMN have no destination, MOV and MVN no first operand.
    let has_rd = !matches!(operation, 0b1000..=0b1011);
    let has_rn = !matches!(operation, 0b1101 | 0b1111);
    if insn::DATA_SHIFTED.matches(word) {
        let registers: &[u32] = match (has_rd, has_rn) {
            (true, true) => &[RD, RN, RS, RM],
            (true, false) => &[RD, RS, RM],
            _ => &[RN, RS, RM],
        };
        return without_pc(word, registers);
    }
    if has_rd && rd == PC && sets_flags {
        return Err(EXCEPTION_RETURN);
    }
    if !has_rd && rd == PC {
        // TEQP and its like, of processors with 26 bits of address.
        return Err(UNALLOCATED);
    }
    // What should be zero.
    if !has_rd && rd != 0 || !has_rn && rn != 0 {
        return Err(UNPREDICTABLE);
    }
    let is_immediate = insn::DATA_IMMEDIATE.matches(word);
    let rm = register(word, RM);
    if !(has_rd && rd == PC || has_rn && rn == PC || !is_immediate && rm == PC) {
        return Ok(OUT_OF_LINE);
    }
    let operand = if is_immediate {
        Operand::Immediate { value: field(word, 0, 8) as u8, rotation: 2 * field(word, 8, 4) as u8 }
    } else {
        let (shift, amount) = immediate_shift(field(word, 5, 2), field(word, 7, 5));
        Operand::Register { rm, shift, amount }
    };
    Ok(Plan::Data { condition, operation, sets_flags, rd, rn, operand, len_bytes: 4 })
}

/// A5.3.
fn memory(word: u32, condition: Condition) -> Decision {
    let access = match (bit(word, 20), bit(word, 22)) {
        (false, false) => Access::Store,
        (false, true) => Access::StoreByte,
        (true, false) => Access::Load,
        (true, true) => Access::LoadByte,
    };
    let (rn, rt, rm) = (register(word, RN), register(word, RD), register(word, RM));
    let has_register = bit(word, 25);
    let Some(addressing) = addressing(word, 24, 21) else {
        return without_pc(word, if has_register { &[RN, RD, RM] } else { &[RN, RD] });
    };
    let is_byte = matches!(access, Access::StoreByte | Access::LoadByte);
    let writes_back = addressing != Addressing::Offset;
    let is_undefined =
        has_register && rm == PC || is_byte && rt == PC || writes_back && (rn == PC || rn == rt);
    if is_undefined {
        return Err(UNPREDICTABLE);
    }
    if rn != PC && rt != PC {
        return Ok(OUT_OF_LINE);
    }
    let offset = if has_register {
        let (shift, amount) = immediate_shift(field(word, 5, 2), field(word, 7, 5));
        let subtracted = if bit(word, 23) { 0 } else { Offset::SUBTRACTED };
        Offset::Register { rm, shift, amount: amount | subtracted }
    } else {
        let distance = field(word, 0, 12) as i16;
        Offset::Immediate(if bit(word, 23) { distance } else { -distance })
    };
    Ok(Plan::Transfer { condition, access, rt, rt2: 0, rn, addressing, offset, len_bytes: 4 })
}

/// A5.4.
fn media(word: u32) -> Decision {
    let (op1, op2) = (field(word, 20, 5), field(word, 5, 3));
    if insn::DEBUGGER.matches(word) || insn::LINUX_PROBE.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::UDF.matches(word) {
        return Err(UNDEFINED);
    }
    match (op1, op2) {
        // Parallel arithmetic; PKH; SEL.
        (0b00001..=0b00011 | 0b00101..=0b00111, 0..=4 | 7) | (0b01000, 0 | 2 | 4 | 6) | (0b01000, 5) => {
            without_pc(word, &[RN, RD, RM])
        }
        // SSAT, USAT; SSAT16, USAT16; REV, REV16, RBIT, REVSH.
        (0b01010 | 0b01011 | 0b01110 | 0b01111, 0 | 2 | 4 | 6)
        | (0b01010 | 0b01110, 1)
        | (0b01011 | 0b01111, 1 | 5) => without_pc(word, &[RD, RM]),
        // SXTB and its like; with Rn 15 nothing is added.
        (0b01000 | 0b01010 | 0b01011 | 0b01100 | 0b01110 | 0b01111, 3) => without_pc(word, &[RD, RM]),
        // SMLAD to SMMLS: with Ra 15 nothing is added. SDIV, UDIV: it is 15. USAD8, USADA8.
        (0b10000, 0..=3) | (0b10101, 0 | 1 | 6 | 7) | (0b11000, 0) => without_pc(word, &[RN, RS, RM]),
        (0b10001 | 0b10011, 0) => without_pc(word, &[RN, RS, RM]),
        // SMLALD, SMLSLD.
        (0b10100, 0..=3) => without_pc(word, &[RN, RD, RS, RM]),
        // SBFX, UBFX.
        (0b11010 | 0b11011 | 0b11110 | 0b11111, 2 | 6) => without_pc(word, &[RD, RM]),
        // BFI; of Rn 15 it is BFC.
        (0b11100 | 0b11101, 0 | 4) => without_pc(word, &[RD]),
        _ => Err(UNALLOCATED),
    }
}

/// A5.5.
fn multiple(word: u32, condition: Condition) -> Decision {
    let (loads, writes_back) = (bit(word, 20), bit(word, 21));
    let registers = field(word, 0, 16) as u16;
    let rn = register(word, RN);
    if bit(word, 22) {
        // LDM to the user's registers and as an exception return, STM of the user's registers.
        return Err(if loads && bit(word, 15) { EXCEPTION_RETURN } else { PROCESSOR_STATE });
    }
    if rn == PC || registers == 0 || writes_back && loads && registers >> rn & 1 == 1 {
        return Err(UNPREDICTABLE);
    }
    if registers >> PC & 1 == 0 {
        return Ok(OUT_OF_LINE);
    }
    if writes_back && registers >> rn & 1 == 1 {
        return Err(UNPREDICTABLE);
    }
    let (goes_up, is_before) = (bit(word, 23), bit(word, 24));
    Ok(Plan::Multiple { condition, loads, rn, goes_up, is_before, writes_back, len_bytes: 4, registers })
}
