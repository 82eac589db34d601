//! The instructions that make up most of every function, without a prefix but REX: all forms of them that
//! are taken here have been valid since the 80386 (CMOVcc: since the P6; MOVSXD and REX: in 64-bit mode), so
//! the counting rule is enough. A walk over a function reads their lengths from a table. Source: SDM volume
//! 2, appendix A, tables.

use crate::MAX_INSN_LEN;
use crate::insn::{Insn, Map, Prefixes};
use crate::mode::Mode;
use core::marker::PhantomData;

/// What follows a plain opcode; 0 if it is not plain.
type Form = u8;

const PLAIN: Form = 0x80;
/// A ModRM byte.
const MODRM: Form = 0x40;
/// Only if ModRM.reg is 0.
const REG_0: Form = 0x20;
/// Only if ModRM.reg is neither 1 nor 6: aliases, which assemblers do not write.
const NO_ALIAS: Form = 0x10;
/// Only if the operand is memory.
const MEMORY: Form = 0x08;
/// Bytes of the immediate.
const IMMEDIATE: Form = 0x07;
/// An immediate of four bytes, or of eight with REX.W.
const FOUR_OR_EIGHT: Form = 0x07;

/// One-byte opcodes.
const fn one_byte(opcode: u8, is_long: bool) -> Form {
    match opcode {
        // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP.
        0x00..=0x3f => match opcode & 7 {
            0..4 => PLAIN | MODRM,
            4 => PLAIN | 1,
            5 => PLAIN | 4,
            _ => 0,
        },
        // PUSH, POP; CWDE, CDQ; XCHG and NOP; RET, LEAVE.
        0x50..=0x5f | 0x90..=0x99 | 0xc3 | 0xc9 => PLAIN,
        // MOVSXD.
        0x63 if is_long => PLAIN | MODRM,
        // PUSH of an immediate; TEST, MOV of an immediate; CALL, JMP.
        0x68 | 0xa9 | 0xe8 | 0xe9 => PLAIN | 4,
        0x6a | 0xa8 | 0xb0..=0xb7 | 0x70..=0x7f | 0xeb => PLAIN | 1,
        0xb8..=0xbf => PLAIN | FOUR_OR_EIGHT,
        // IMUL.
        0x69 => PLAIN | MODRM | 4,
        0x6b => PLAIN | MODRM | 1,
        // Group 1.
        0x80 | 0x83 => PLAIN | MODRM | 1,
        0x81 => PLAIN | MODRM | 4,
        // TEST, XCHG, MOV.
        0x84..=0x8b => PLAIN | MODRM,
        // LEA.
        0x8d => PLAIN | MODRM | MEMORY,
        // Group 2: shifts.
        0xc0 | 0xc1 => PLAIN | MODRM | NO_ALIAS | 1,
        0xd0..=0xd3 => PLAIN | MODRM | NO_ALIAS,
        // Group 11: MOV of an immediate.
        0xc6 => PLAIN | MODRM | REG_0 | 1,
        0xc7 => PLAIN | MODRM | REG_0 | 4,
        _ => 0,
    }
}

/// Two-byte opcodes, after 0F.
const fn two_byte(opcode: u8) -> Form {
    match opcode {
        // CMOVcc, SETcc, IMUL, MOVZX, MOVSX.
        0x40..=0x4f | 0x90..=0x9f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf => PLAIN | MODRM,
        // NOP.
        0x1f => PLAIN | MODRM | REG_0,
        // Jcc.
        0x80..=0x8f => PLAIN | 4,
        _ => 0,
    }
}

/// The forms of one-byte opcodes, and of two-byte ones behind them.
struct Table<M>(PhantomData<M>);

impl<M: Mode> Table<M> {
    const FORMS: [Form; 512] = {
        let mut forms = [0; 512];
        let mut opcode = 0;
        while opcode < 256 {
            forms[opcode] = one_byte(opcode as u8, M::IS_LONG);
            forms[256 + opcode] = two_byte(opcode as u8);
            opcode += 1;
        }
        forms
    };
}

/// Whether an opcode of that form is plain with this ModRM byte.
const fn suits(form: Form, modrm: u8) -> bool {
    let reg = modrm >> 3 & 7;
    form & PLAIN != 0
        && (form & REG_0 == 0 || reg == 0)
        && (form & NO_ALIAS == 0 || reg != 1 && reg != 6)
        && (form & MEMORY == 0 || modrm < 0xc0)
}

/// Whether the instruction is plain.
pub(super) fn is_plain<M: Mode>(insn: &Insn) -> bool {
    let table = &Table::<M>::FORMS;
    let opcode = usize::from(insn.opcode);
    let form = match insn.map {
        Map::Primary => table.get(opcode),
        Map::Escape0F => table.get(256 + opcode),
        _ => None,
    };
    insn.prefixes == Prefixes::default()
        && form.is_some_and(|form| suits(*form, insn.modrm.map_or(0, |modrm| modrm.0)))
}

/// The length of the instruction that `bytes` start with, if it is plain.
#[inline]
pub(super) fn plain_len<M: Mode>(bytes: &[u8]) -> Option<usize> {
    // Room for the longest one: nothing below looks past it.
    let bytes = bytes.first_chunk::<MAX_INSN_LEN>()?;
    let table = &Table::<M>::FORMS;
    let has_rex = M::IS_LONG && bytes[0] & 0xf0 == 0x40;
    let at = usize::from(has_rex);
    let is_escape = bytes[at] == 0x0f;
    let at = at + usize::from(is_escape);
    let form = *table.get(usize::from(bytes[at]) | usize::from(is_escape) << 8)?;
    let after = at + 1;
    if !suits(form, bytes[after]) {
        return None;
    }
    let operand = if form & MODRM == 0 { 0 } else { 1 + operand_len(bytes[after], bytes[after + 1]) };
    let immediate = match form & IMMEDIATE {
        FOUR_OR_EIGHT if has_rex && bytes[0] & 8 != 0 => 8,
        FOUR_OR_EIGHT => 4,
        len => usize::from(len),
    };
    Some(after + operand + immediate)
}

/// The bytes of SIB and displacement after a ModRM byte, without an address-size prefix. Source: SDM volume
/// 2, tables 2-2 and 2-3.
const fn operand_len(modrm: u8, sib: u8) -> usize {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && rm == 4;
    let base = if has_sib { sib & 7 } else { rm };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    displacement + has_sib as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LongMode, ProtectedMode};

    /// Calls `see` with the beginnings of instructions: all opcodes of both tables, with and without REX, all
    /// ModRM bytes, SIB bytes of each kind.
    fn for_each_beginning<M: Mode>(see: &mut dyn FnMut(&[u8; MAX_INSN_LEN])) {
        let rex: &[Option<u8>] =
            if M::IS_LONG { &[None, Some(0x40), Some(0x41), Some(0x48), Some(0x4f)] } else { &[None] };
        for rex in rex {
            for opcode in 0..512_usize {
                for modrm in 0..=255 {
                    for sib in [0x00, 0x24, 0x25, 0x65, 0xe5] {
                        let escape = (opcode >= 256).then_some(0x0f);
                        let beginning = [*rex, escape, Some(opcode as u8), Some(modrm), Some(sib)];
                        let mut bytes = [0x11; MAX_INSN_LEN];
                        for (to, from) in bytes.iter_mut().zip(beginning.into_iter().flatten()) {
                            *to = from;
                        }
                        see(&bytes);
                    }
                }
            }
        }
    }

    fn check<M: Mode>() {
        let mut plain = 0;
        for_each_beginning::<M>(&mut |bytes| {
            let parsed = Insn::parse::<M>(bytes);
            let counted = parsed.filter(is_plain::<M>).map(|insn| usize::from(insn.len_bytes));
            // Prefixes without meaning are left to the counting rule.
            let measured = plain_len::<M>(bytes);
            assert!(measured.is_none() || measured == counted, "{bytes:02x?}: {measured:?}, not {counted:?}");
            if measured.is_some() {
                plain += 1;
                assert_eq!(M::known_len(bytes), measured, "{bytes:02x?}: the other answer");
            }
        });
        // A quarter of all, if nothing else.
        assert!(plain > 512 * 256, "{plain}");
    }

    #[test]
    fn the_table_the_counting_rule_and_the_other_decoder_agree() {
        check::<LongMode>();
        check::<ProtectedMode>();
    }

    #[test]
    fn what_may_end_too_early_is_not_measured_by_the_table() {
        assert_eq!(plain_len::<LongMode>(&[0x90; MAX_INSN_LEN]), Some(1));
        assert_eq!(plain_len::<LongMode>(&[0x90; MAX_INSN_LEN - 1]), None);
    }
}
