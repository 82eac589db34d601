//! The compressed instructions: I 27 (C), I 28.12 (Zcb). D is taken to exist (RV64GC), so that the encodings
//! which Zcmp and Zcmt take from `c.fsdsp` are stores.

use super::{BREAKPOINT, Condition, Plan, UNALLOCATED, UNDEFINED};
use crate::insn::{self, field};
use crate::regs::RA;
use probe_core::error::Refusal;

/// Decides about the halfword `word`, by quadrant and funct3 (I 27.8).
pub(super) fn classify(word: u32) -> Result<Plan, Refusal> {
    if let Some(plan) = control_flow(word) {
        return Ok(plan);
    }
    if insn::C_EBREAK.matches(word) {
        return Err(BREAKPOINT);
    }
    if insn::C_UNIMP.matches(word) {
        return Err(UNDEFINED);
    }
    let rd = insn::rd(word);
    let immediate_bits = field(word, 12, 1) << 5 | field(word, 2, 5);
    let is_known = match (field(word, 0, 2), field(word, 13, 3)) {
        // c.addi4spn: a zero immediate is reserved.
        (0b00, 0b000) => field(word, 5, 8) != 0,
        (0b00, 0b100) => is_byte_or_half(word),
        // c.fld, c.lw, c.ld, c.fsd, c.sw, c.sd.
        (0b00, _) => true,
        // c.addi, c.li: hints where they do nothing.
        (0b01, 0b000 | 0b010) => true,
        // c.addiw: X0 is reserved.
        (0b01, 0b001) => rd != 0,
        // c.addi16sp, c.lui: a zero immediate is reserved, or Zcmop's.
        (0b01, 0b011) => immediate_bits != 0,
        (0b01, 0b100) => is_arithmetic(word),
        // c.slli, c.fldsp, c.fsdsp, c.swsp, c.sdsp.
        (0b10, 0b000 | 0b001 | 0b101 | 0b110 | 0b111) => true,
        // c.lwsp, c.ldsp: X0 is reserved.
        (0b10, 0b010 | 0b011) => rd != 0,
        // c.mv and c.add; without rs2 they are jumps.
        (0b10, 0b100) => field(word, 2, 5) != 0,
        _ => false,
    };
    if is_known { Ok(Plan::OutOfLine) } else { Err(UNALLOCATED) }
}

fn control_flow(word: u32) -> Option<Plan> {
    let branch = |condition| {
        let (rs1, offset) = (insn::rs1_prime(word), insn::offset_cb(word));
        Plan::Branch { condition, rs1, rs2: 0, offset, len_bytes: 2 }
    };
    let jump = |rd| Plan::JumpRegister { rd, rs1: insn::rd(word), offset: 0, len_bytes: 2 };
    if insn::C_NOP.matches(word) {
        Some(Plan::Nop { len_bytes: 2 })
    } else if insn::C_J.matches(word) {
        Some(Plan::Jump { rd: 0, offset: insn::offset_cj(word) })
    } else if insn::C_BEQZ.matches(word) {
        Some(branch(Condition::Equal))
    } else if insn::C_BNEZ.matches(word) {
        Some(branch(Condition::NotEqual))
    } else if insn::rd(word) == 0 {
        None
    } else if insn::C_JR.matches(word) {
        Some(jump(0))
    } else if insn::C_JALR.matches(word) {
        Some(jump(RA))
    } else {
        None
    }
}

/// `c.lbu`, `c.lhu`, `c.lh`, `c.sb`, `c.sh` (I 28.12).
fn is_byte_or_half(word: u32) -> bool {
    match field(word, 10, 3) {
        0b000..=0b010 => true,
        0b011 => field(word, 6, 1) == 0,
        _ => false,
    }
}

/// `c.srli`, `c.srai`, `c.andi`, and register with register.
fn is_arithmetic(word: u32) -> bool {
    match (field(word, 10, 2), field(word, 12, 1), field(word, 5, 2)) {
        (0b00..=0b10, ..) | (0b11, 0, _) => true,
        // c.subw, c.addw; c.mul; c.zext.b to c.not, one operand each.
        (_, _, 0b00..=0b10) => true,
        (_, _, _) => field(word, 2, 3) <= 0b101,
    }
}
