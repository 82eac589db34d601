//! The instructions of four bytes, by major opcode (I 34, table 70).

use super::{
    BREAKPOINT, Condition, EXCEPTION_RETURN, LANDING_PAD, Plan, RESERVATION, SYSTEM_REGISTER, UNALLOCATED,
    UNDEFINED,
};
use crate::insn::{self, field, funct3, funct7};
use probe_core::error::Refusal;

pub(super) fn classify(word: u32) -> Result<Plan, Refusal> {
    if let Some(decided) = control_flow(word) {
        return decided;
    }
    let is_known = match insn::opcode(word) {
        // LOAD; LOAD-FP and STORE-FP: scalars of two to sixteen bytes, vectors of each width (I 30.7).
        0b00000 => funct3(word) != 7,
        0b00001 | 0b01001 => true,
        0b00011 => is_known_fence(word),
        0b00100 => is_known_immediate(word),
        0b00110 => is_known_immediate_32(word),
        // STORE.
        0b01000 => funct3(word) <= 3,
        0b01011 => return atomic(word),
        0b01100 => listed(OP, word),
        // LUI.
        0b01101 => true,
        0b01110 => listed(OP_32, word),
        // FMADD, FMSUB, FNMSUB, FNMADD.
        0b10000..=0b10011 => has_rounding_mode(word),
        0b10100 => is_known_floating_point(word),
        // OP-V: what is reserved there is an illegal instruction in a slot, too.
        0b10101 => true,
        0b11100 => return system(word),
        _ => false,
    };
    if is_known { Ok(Plan::OutOfLine) } else { Err(UNALLOCATED) }
}

/// Instructions that read or write the program counter, and NOP; `None` if `word` is none of them.
fn control_flow(word: u32) -> Option<Result<Plan, Refusal>> {
    let rd = insn::rd(word);
    let plan = if insn::NOP.matches(word) {
        Plan::Nop { len_bytes: 4 }
    } else if insn::LPAD.matches(word) {
        return Some(Err(LANDING_PAD));
    } else if insn::AUIPC.matches(word) {
        Plan::Address { rd, offset: insn::immediate_u(word) }
    } else if insn::JAL.matches(word) {
        Plan::Jump { rd, offset: insn::immediate_j(word) }
    } else if insn::JALR.matches(word) {
        Plan::JumpRegister { rd, rs1: insn::rs1(word), offset: insn::immediate_i(word), len_bytes: 4 }
    } else if insn::BRANCH.matches(word) {
        let condition = match funct3(word) {
            0b000 => Condition::Equal,
            0b001 => Condition::NotEqual,
            0b100 => Condition::Less,
            0b101 => Condition::GreaterOrEqual,
            0b110 => Condition::Below,
            0b111 => Condition::AboveOrEqual,
            _ => return Some(Err(UNALLOCATED)),
        };
        let (rs1, rs2, offset) = (insn::rs1(word), insn::rs2(word), insn::immediate_b(word));
        Plan::Branch { condition, rs1, rs2, offset, len_bytes: 4 }
    } else {
        return None;
    };
    Some(Ok(plan))
}

fn is_known_fence(word: u32) -> bool {
    insn::FENCE.matches(word)
        || insn::FENCE_I.matches(word)
        || insn::CBO.matches(word) && matches!(field(word, 20, 12), 0 | 1 | 2 | 4)
}

/// OP-IMM: only the shifts' space has gaps (I 2.4.1, 31.5; Zbb, Zbs, Zbkb, Zkn).
fn is_known_immediate(word: u32) -> bool {
    let funct12 = field(word, 20, 12);
    match funct3(word) {
        // slli, bseti, bclri, binvi; clz, ctz, cpop, sext.b, sext.h; sha256, sha512; aes64im, aes64ks1i.
        0b001 => {
            matches!(funct12 >> 6, 0x00 | 0x0a | 0x12 | 0x1a)
                || matches!(funct12, 0x600..=0x602 | 0x604 | 0x605 | 0x100..=0x107 | 0x300 | 0x310..=0x31a)
        }
        // srli, srai, bexti, rori; orc.b, brev8, rev8.
        0b101 => {
            matches!(funct12 >> 6, 0x00 | 0x10 | 0x12 | 0x18) || matches!(funct12, 0x287 | 0x687 | 0x6b8)
        }
        _ => true,
    }
}

/// OP-IMM-32.
fn is_known_immediate_32(word: u32) -> bool {
    match funct3(word) {
        0b000 => true,
        // slliw, slli.uw; clzw, ctzw, cpopw.
        0b001 => matches!(funct7(word), 0x00 | 0x04 | 0x05) || matches!(field(word, 20, 12), 0x600..=0x602),
        // srliw, sraiw, roriw.
        0b101 => matches!(funct7(word), 0x00 | 0x20 | 0x30),
        _ => false,
    }
}

/// Rows of funct7 and, a bit each, the funct3 that it is allocated with.
type Table = &'static [(u32, u8)];

/// OP: I 34, table 71 ff.
const OP: Table = &[
    (0x00, 0b1111_1111), // add sll slt sltu xor srl or and
    (0x01, 0b1111_1111), // mul mulh mulhsu mulhu div divu rem remu
    (0x04, 0b1001_0000), // pack packh
    (0x05, 0b1111_1110), // clmul clmulr clmulh min minu max maxu
    (0x07, 0b1010_0000), // czero.eqz czero.nez
    (0x10, 0b0101_0100), // sh1add sh2add sh3add
    (0x14, 0b0001_0110), // bset xperm4 xperm8
    (0x19, 0b0000_0001), // aes64es
    (0x1b, 0b0000_0001), // aes64esm
    (0x1d, 0b0000_0001), // aes64ds
    (0x1f, 0b0000_0001), // aes64dsm
    (0x20, 0b1111_0001), // sub xnor sra orn andn
    (0x24, 0b0010_0010), // bclr bext
    (0x30, 0b0010_0010), // rol ror
    (0x34, 0b0000_0010), // binv
    (0x3f, 0b0000_0001), // aes64ks2
];

/// OP-32.
const OP_32: Table = &[
    (0x00, 0b0010_0011), // addw sllw srlw
    (0x01, 0b1111_0001), // mulw divw divuw remw remuw
    (0x04, 0b0001_0001), // add.uw packw (zext.h)
    (0x10, 0b0101_0100), // sh1add.uw sh2add.uw sh3add.uw
    (0x20, 0b0010_0001), // subw sraw
    (0x30, 0b0010_0010), // rolw rorw
];

fn listed(table: Table, word: u32) -> bool {
    table.iter().any(|(row, allocated)| *row == funct7(word) && allocated >> funct3(word) & 1 == 1)
}

/// AMO: I 13 (A, Zacas, Zabha). One instruction each, but for LR and SC.
fn atomic(word: u32) -> Result<Plan, Refusal> {
    if insn::LR.matches(word) || insn::SC.matches(word) {
        return Err(RESERVATION);
    }
    let is_known = match field(word, 27, 5) {
        // amoadd, amoswap, amoxor, amoor, amoand, amomin, amomax, amominu, amomaxu.
        0x00 | 0x01 | 0x04 | 0x08 | 0x0c | 0x10 | 0x14 | 0x18 | 0x1c => funct3(word) <= 3,
        // amocas, up to sixteen bytes.
        0x05 => funct3(word) <= 4,
        _ => false,
    };
    if is_known { Ok(Plan::OutOfLine) } else { Err(UNALLOCATED) }
}

/// I 21.2: 5 and 6 are reserved.
fn has_rounding_mode(word: u32) -> bool {
    !matches!(funct3(word), 5 | 6)
}

/// OP-FP: I 21, 22, Zfh, Q; of Zfa `fminm`, `fmaxm`, `fleq`, `fltq`, `fround`, `froundnx`, `fli`, `fcvtmod`.
fn is_known_floating_point(word: u32) -> bool {
    let rs2 = field(word, 20, 5);
    match field(word, 27, 5) {
        // fadd, fsub, fmul, fdiv.
        0b00000..=0b00011 => has_rounding_mode(word),
        0b01011 => rs2 == 0 && has_rounding_mode(word),
        // fsgnj, fsgnjn, fsgnjx.
        0b00100 => funct3(word) <= 2,
        0b00101 => funct3(word) <= 3,
        // Between formats; to integers; from integers.
        0b01000 => rs2 <= 5 && has_rounding_mode(word),
        0b11000 => (rs2 <= 3 || rs2 == 8) && has_rounding_mode(word),
        0b11010 => rs2 <= 3 && has_rounding_mode(word),
        // feq, flt, fle; fleq, fltq.
        0b10100 => matches!(funct3(word), 0..=2 | 4 | 5),
        // fmv.x.w, fclass; fmv.w.x, fli.
        0b11100 => rs2 == 0 && funct3(word) <= 1,
        0b11110 => rs2 == 0 && funct3(word) == 0 || rs2 == 1 && funct3(word) == 0,
        _ => false,
    }
}

/// SYSTEM: an allow-list (I 2.8, 7.1, II 2.2, 3.3).
fn system(word: u32) -> Result<Plan, Refusal> {
    if insn::ECALL.matches(word) {
        return Ok(Plan::SystemCall);
    }
    if insn::EBREAK.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::SRET.matches(word) || insn::MRET.matches(word) || insn::MNRET.matches(word) {
        return Err(EXCEPTION_RETURN);
    }
    if insn::WRS.matches(word) {
        return Err(RESERVATION);
    }
    if insn::WFI.matches(word) || insn::SFENCE_VMA.matches(word) {
        return Ok(Plan::OutOfLine);
    }
    if matches!(funct3(word), 0 | 4) {
        return Err(UNALLOCATED);
    }
    let register = field(word, 20, 12);
    let is_write = field(word, 12, 2) == 1 || insn::rs1(word) != 0;
    match register {
        // fflags, frm, fcsr; vstart, vxsat, vxrm, vcsr; seed.
        0x001..=0x003 | 0x008..=0x00a | 0x00f | 0x015 => Ok(Plan::OutOfLine),
        // II 2.1: where the two highest bits are set, the register can only be read.
        0xc00..=0xfff if is_write => Err(UNDEFINED),
        // cycle, time, instret, hpmcounter3 to 31; vl, vtype, vlenb.
        0xc00..=0xc22 => Ok(Plan::OutOfLine),
        _ => Err(SYSTEM_REGISTER),
    }
}
