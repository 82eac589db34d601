//! How long an instruction is: two independent answers, which must agree for all but the most common
//! instructions.
//!
//! [`Insn`] counts prefixes, ModRM, displacement and immediate by the manuals' rules; yaxpeax-x86 knows which
//! encodings exist. Measured against hardware, yaxpeax-x86 2.2 refuses rather than mis-measures, with two
//! exceptions. It rejects valid vector instructions (all opmask ones, FP16, AVX-VNNI, …) and some recent
//! legacy ones: there the counting rule is trusted alone. In 32-bit mode it measures near branches with an
//! operand-size prefix wrongly: there the counting rule wins. In 64-bit mode the length of those is the
//! vendor's choice (Intel ignores the prefix, AMD takes 16-bit displacements), so there is no answer.

use crate::insn::{Insn, Map, Prefixes, REX_R};
use crate::mode::Mode;

/// The length in bytes of the instruction that `bytes` start with, or `None` where it cannot be told.
#[must_use]
pub fn insn_len<M: Mode>(bytes: &[u8]) -> Option<usize> {
    valid::<M>(bytes).map(|insn| usize::from(insn.len_bytes))
}

/// The instruction that `bytes` start with, if its length is certain.
#[must_use]
pub fn valid<M: Mode>(bytes: &[u8]) -> Option<Insn> {
    let insn = Insn::parse::<M>(bytes)?;
    if is_plain(&insn) {
        return Some(insn);
    }
    let counted = usize::from(insn.len_bytes);
    let is_certain = match M::known_len(&insn.padded()) {
        _ if is_near_relative_with_operand_size(&insn) => !M::IS_LONG,
        Some(known) => known == counted,
        None => is_counted_alone::<M>(&insn),
    };
    is_certain.then_some(insn)
}

/// The instructions that make up most of every function, without a prefix but REX: all their forms have been
/// valid since the 80386, so the counting rule is enough. Nine of ten instructions then need no second
/// answer, which speeds up a walk from a function's start. Source: SDM volume 2, appendix A, table A-2.
fn is_plain(insn: &Insn) -> bool {
    let is_register = insn.modrm.is_some_and(|modrm| modrm.is_register());
    let extension = insn.modrm.map_or(0, |modrm| modrm.reg());
    insn.map == Map::Primary
        && insn.prefixes == Prefixes::default()
        && match insn.opcode {
            // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP.
            0x00..=0x3f => insn.opcode & 7 < 6,
            // PUSH, POP, Jcc, TEST, MOV, XCHG and NOP, RET, LEAVE, CALL, JMP.
            0x50..=0x5f | 0x68 | 0x6a | 0x70..=0x7f => true,
            0x84 | 0x85 | 0x88..=0x8b | 0x90..=0x97 | 0xa8 | 0xa9 | 0xb0..=0xbf => true,
            0xc3 | 0xc9 | 0xe8 | 0xe9 | 0xeb => true,
            // Group 1; MOV of an immediate; LEA, which needs memory.
            0x80 | 0x81 | 0x83 => true,
            0xc6 | 0xc7 => extension == 0,
            0x8d => !is_register,
            _ => false,
        }
}

/// CALL, JMP, Jcc or XBEGIN with a displacement whose size the prefix 66 may change.
///
/// REX.W beats the prefix on both vendors' processors (`66 66 48 e8` is the usual call of `__tls_get_addr`).
fn is_near_relative_with_operand_size(insn: &Insn) -> bool {
    let is_near_relative = match insn.map {
        Map::Primary => {
            matches!(insn.opcode, 0xe8 | 0xe9)
                || insn.opcode == 0xc7 && insn.modrm.is_some_and(|modrm| modrm.0 == 0xf8)
        }
        Map::Escape0F => matches!(insn.opcode, 0x80..=0x8f),
        _ => false,
    };
    is_near_relative && insn.has(Prefixes::OPERAND_SIZE) && !insn.is_wide()
}

/// Encodings that exist, or are reserved with a structure that the manuals fix, but that yaxpeax-x86 rejects.
fn is_counted_alone<M: Mode>(insn: &Insn) -> bool {
    match insn.map {
        // Opmask, GFNI, AVX-VNNI, AVX-IFMA, CMPccXADD, SHA512, AMX; FP16; FMA4, TBM, XOP rotates.
        Map::Vex(map) => matches!(map, 1..=3 | 5 | 7),
        Map::Evex(map) => matches!(map, 1..=3 | 5..=7),
        Map::Xop(map) => matches!(map, 8..=10),
        // SERIALIZE, WRMSRNS, RDMSRLIST, ERETS, XSUSLDTRK, UINTR, LKGS and other register forms of the system
        // groups.
        Map::Escape0F => match insn.opcode {
            0x00 | 0x01 => insn.modrm.is_some_and(|modrm| modrm.is_register()),
            _ => false,
        },
        // RAO, ENQCMD, MOVDIRI, URDMSR; Key Locker; HRESET.
        Map::Escape0F38 => matches!(insn.opcode, 0xd8..=0xdf | 0xf0..=0xff),
        Map::Escape0F3A => insn.opcode == 0xf0,
        Map::Primary => match insn.opcode {
            // MOV with a segment register: REX.R is ignored.
            0x8c | 0x8e => insn.rex & REX_R != 0,
            // The alias of group 80, and far transfers (which are refused, but may be walked over).
            0x82 | 0x9a | 0xea => !M::IS_LONG,
            _ => false,
        },
    }
}
