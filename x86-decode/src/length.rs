//! How long an instruction is: two independent answers, which must agree for all but the most common
//! instructions.
//!
//! [`Insn`] counts prefixes, ModRM, displacement and immediate by the manuals' rules; yaxpeax-x86 knows which
//! encodings exist. Measured against hardware, yaxpeax-x86 2.2 refuses rather than mis-measures, with two
//! exceptions. It rejects valid vector instructions (all opmask ones, FP16, AVX-VNNI, …) and some recent
//! legacy ones: there the counting rule is trusted alone. In 32-bit mode it measures near branches with an
//! operand-size prefix wrongly: there the counting rule wins. In 64-bit mode the length of those is the
//! vendor's choice (Intel ignores the prefix, AMD takes 16-bit displacements), so there is no answer.

mod plain;

use crate::insn::{Insn, Map, Prefixes, REX_R};
use crate::mode::Mode;
use plain::{is_plain, plain_len};

/// The length in bytes of the instruction that `bytes` start with, or `None` where it cannot be told.
#[must_use]
pub fn insn_len<M: Mode>(bytes: &[u8]) -> Option<usize> {
    plain_len::<M>(bytes).or_else(|| valid::<M>(bytes).map(|insn| usize::from(insn.len_bytes)))
}

/// The instruction that `bytes` start with, if its length is certain.
#[must_use]
pub fn valid<M: Mode>(bytes: &[u8]) -> Option<Insn> {
    let insn = Insn::parse::<M>(bytes)?;
    if is_plain::<M>(&insn) {
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
