//! Named encodings and field extractors.
//!
//! A [`Class`] is a mask and a value over an instruction word. An A32 instruction is a word in memory; a T32
//! instruction of four bytes is two halfwords, of which the first is the word's upper half here, and one of
//! two bytes has a zero there. Names and section numbers are those of the ARM Architecture Reference Manual,
//! ARMv7-A and ARMv7-R edition (DDI 0406C.d), or, where a comment says so, of that of ARMv8 (DDI 0487).
//! Instructions are little-endian on every machine that this backend is for (BE8, A3.3.1). Pure data.

use probe_core::CodeAddr;

/// An instruction set (A2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Words.
    A32,
    /// Halfwords, one or two: Thumb.
    T32,
}

impl Set {
    /// That of the code at `at`: bit 0 says it, as in BX's operand (A2.3.2).
    #[inline]
    pub(crate) const fn of(at: CodeAddr) -> Self {
        if at.as_usize() & 1 == 0 { Self::A32 } else { Self::T32 }
    }

    /// How far ahead of an instruction the program counter reads (A2.3.2).
    #[inline]
    pub(crate) const fn ahead(self) -> u32 {
        match self {
            Self::A32 => 8,
            Self::T32 => 4,
        }
    }
}

/// The instruction that `bytes` starts with, whatever the byte order of this machine. `None` where `bytes`
/// are too few.
pub(crate) const fn word_at(set: Set, bytes: &[u8]) -> Option<u32> {
    match set {
        Set::A32 => match bytes.first_chunk::<4>() {
            Some(word) => Some(u32::from_le_bytes(*word)),
            None => None,
        },
        Set::T32 => {
            let Some([low, high]) = bytes.first_chunk::<2>() else { return None };
            let first = u16::from_le_bytes([*low, *high]) as u32;
            if first < FIRST_WIDE {
                return Some(first);
            }
            match bytes.first_chunk::<4>() {
                Some([_, _, low, high]) => Some(first << 16 | u16::from_le_bytes([*low, *high]) as u32),
                None => None,
            }
        }
    }
}

/// The lowest first halfword of a T32 instruction of four bytes (A6.1).
const FIRST_WIDE: u32 = 0xe800;

/// The length in bytes of the instruction `word`.
pub(crate) const fn len_bytes(set: Set, word: u32) -> u8 {
    match set {
        Set::T32 if word < FIRST_WIDE << 16 => 2,
        _ => 4,
    }
}

/// The instruction words with `word & mask == value`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    mask: u32,
    value: u32,
}

impl Class {
    const fn new(mask: u32, value: u32) -> Self {
        assert!(value & !mask == 0);
        Self { mask, value }
    }

    pub(crate) const fn matches(self, word: u32) -> bool {
        word & self.mask == self.value
    }
}

/// `count` bits from `low` on.
pub(crate) const fn field(word: u32, low: u32, count: u32) -> u32 {
    word >> low & ((1 << count) - 1)
}

/// Whether bit `number` is set.
pub(crate) const fn bit(word: u32, number: u32) -> bool {
    word >> number & 1 != 0
}

/// The register number in the four bits from `low` on.
pub(crate) const fn register(word: u32, low: u32) -> u8 {
    field(word, low, 4) as u8
}

/// The number in the lowest `count` bits, sign-extended.
pub(crate) const fn signed(bits: u32, count: u32) -> i32 {
    (bits << (32 - count)).cast_signed() >> (32 - count)
}

// ---- breakpoints, A32 and T32: A8.8.24, B9.3.2 ------------------------------------------------------------

/// `bkpt #0xfbef`, whose lower half is `bkpt #0x7f` in T32. BKPT may be stored over other instructions that
/// processors execute, and is never conditional (A3.5.4, A8.8.24).
pub(crate) const BREAKPOINT_A32: u32 = 0xe12f_be7f;
/// `bkpt #0x7f`.
pub(crate) const BREAKPOINT_T32: u16 = 0xbe7f;
pub(crate) const BKPT: Class = Class::new(0x0ff0_00f0, 0x0120_0070);
pub(crate) const T_BKPT: Class = Class::new(0xffff_ff00, 0x0000_be00);
/// HLT (DDI 0487 F5.1.57).
pub(crate) const HLT: Class = Class::new(0x0ff0_00f0, 0x0100_0070);
pub(crate) const T_HLT: Class = Class::new(0xffff_ffc0, 0x0000_ba80);
/// What Linux takes for a debugger's breakpoint: `udf #16` with any condition, `svc 0x9f0001`, `udf #1`,
/// `udf.w #0` with 0xa000.
pub(crate) const DEBUGGER: Class = Class::new(0x0fff_ffff, 0x07f0_01f0);
pub(crate) const DEBUGGER_CALL: Class = Class::new(0x0fff_ffff, 0x0f9f_0001);
pub(crate) const T_DEBUGGER: Class = Class::new(0xffff_ffff, 0x0000_de01);
pub(crate) const T_DEBUGGER_WIDE: Class = Class::new(0xffff_ffff, 0xf7f0_a000);
/// What Linux's kprobes and uprobes put: `udf #24` and `udf #25`.
pub(crate) const LINUX_PROBE: Class = Class::new(0x0fff_fffe, 0x07f0_01f8);
pub(crate) const T_LINUX_PROBE: Class = Class::new(0xffff_fffe, 0x0000_de18);

// ---- A32, unconditional: A5.7 -----------------------------------------------------------------------------

pub(crate) const UNCONDITIONAL: Class = Class::new(0xf000_0000, 0xf000_0000);
/// BLX to T32 (A8.8.25).
pub(crate) const BLX_IMMEDIATE: Class = Class::new(0xfe00_0000, 0xfa00_0000);
/// PLD, PLDW, PLI with an immediate or a register, and the hints without an effect beside them (A8.8.127
/// ff.).
pub(crate) const PRELOAD: Class = Class::new(0xfd70_f000, 0xf550_f000);
pub(crate) const PRELOAD_WRITE: Class = Class::new(0xfd70_f000, 0xf510_f000);
pub(crate) const PRELOAD_INSTRUCTION: Class = Class::new(0xfd70_f000, 0xf450_f000);
pub(crate) const CLREX: Class = Class::new(0xffff_ffff, 0xf57f_f01f);
pub(crate) const DSB: Class = Class::new(0xffff_fff0, 0xf57f_f040);
pub(crate) const DMB: Class = Class::new(0xffff_fff0, 0xf57f_f050);
pub(crate) const ISB: Class = Class::new(0xffff_fff0, 0xf57f_f060);
/// CPS and SETEND (B9.3.2, A8.8.154).
pub(crate) const CPS: Class = Class::new(0xfff0_0000, 0xf100_0000);
/// RFE and SRS (B9.3.13, B9.3.16).
pub(crate) const RFE: Class = Class::new(0xfe50_0000, 0xf810_0000);
pub(crate) const SRS: Class = Class::new(0xfe50_0000, 0xf840_0000);
/// Advanced SIMD: data processing, loads and stores (A7.4, A7.7).
pub(crate) const SIMD_DATA: Class = Class::new(0xfe00_0000, 0xf200_0000);
pub(crate) const SIMD_MEMORY: Class = Class::new(0xff10_0000, 0xf400_0000);

// ---- A32: A5.2 to A5.6 ------------------------------------------------------------------------------------

/// MRS from CPSR, from SPSR or a banked register (A8.8.109, B9.3.8 f.).
pub(crate) const MRS: Class = Class::new(0x0fff_0fff, 0x010f_0000);
pub(crate) const MRS_ANY: Class = Class::new(0x0fb0_00f0, 0x0100_0000);
/// MSR (A8.8.111 f.).
pub(crate) const MSR_REGISTER: Class = Class::new(0x0fb0_00f0, 0x0120_0000);
pub(crate) const MSR_IMMEDIATE: Class = Class::new(0x0fb0_0000, 0x0320_0000);
pub(crate) const BX: Class = Class::new(0x0fff_fff0, 0x012f_ff10);
pub(crate) const BXJ: Class = Class::new(0x0fff_fff0, 0x012f_ff20);
pub(crate) const BLX: Class = Class::new(0x0fff_fff0, 0x012f_ff30);
pub(crate) const CLZ: Class = Class::new(0x0fff_0ff0, 0x016f_0f10);
/// CRC32, CRC32C (DDI 0487 F5.1.40).
pub(crate) const CRC32: Class = Class::new(0x0f90_0df0, 0x0100_0040);
/// QADD and its like (A5.2.6).
pub(crate) const SATURATING: Class = Class::new(0x0f90_0ff0, 0x0100_0050);
pub(crate) const ERET: Class = Class::new(0x0fff_ffff, 0x0160_006e);
pub(crate) const HVC: Class = Class::new(0x0ff0_00f0, 0x0140_0070);
pub(crate) const SMC: Class = Class::new(0x0fff_fff0, 0x0160_0070);
/// SMLAxy and its like (A5.2.7).
pub(crate) const HALFWORD_MULTIPLY: Class = Class::new(0x0f90_0090, 0x0100_0080);
/// MUL to SMLAL (A5.2.5).
pub(crate) const MULTIPLY: Class = Class::new(0x0f00_00f0, 0x0000_0090);
/// SWP, SWPB (A8.8.229).
pub(crate) const SWAP: Class = Class::new(0x0fb0_0ff0, 0x0100_0090);
/// LDREX, STREX and their like, and those with acquire and release (A5.2.10; DDI 0487 F4.1.2).
pub(crate) const EXCLUSIVE: Class = Class::new(0x0f80_0ef0, 0x0180_0e90);
/// LDREX and its like.
pub(crate) const LOAD_EXCLUSIVE: Class = Class::new(0x0f90_0ef0, 0x0190_0e90);
/// LDA, STL: one access each (DDI 0487 F5.1.64).
pub(crate) const LOAD_ACQUIRE: Class = Class::new(0x0f90_0fff, 0x0190_0c9f);
pub(crate) const STORE_RELEASE: Class = Class::new(0x0f90_fff0, 0x0180_fc90);
/// Halfwords, signed bytes, pairs (A5.2.8).
pub(crate) const EXTRA_MEMORY: Class = Class::new(0x0e00_0090, 0x0000_0090);
/// Data processing: immediate, register, register-shifted register (A5.2.1 to A5.2.3).
pub(crate) const DATA_IMMEDIATE: Class = Class::new(0x0e00_0000, 0x0200_0000);
pub(crate) const DATA_REGISTER: Class = Class::new(0x0e00_0010, 0x0000_0000);
pub(crate) const DATA_SHIFTED: Class = Class::new(0x0e00_0090, 0x0000_0010);
/// MOVW, MOVT (A8.8.102, A8.8.106).
pub(crate) const MOVW: Class = Class::new(0x0ff0_0000, 0x0300_0000);
pub(crate) const MOVT: Class = Class::new(0x0ff0_0000, 0x0340_0000);
/// NOP and the hints (A5.2.11).
pub(crate) const HINT: Class = Class::new(0x0fff_ff00, 0x0320_f000);
/// LDR, STR, LDRB, STRB (A5.3).
pub(crate) const MEMORY_IMMEDIATE: Class = Class::new(0x0e00_0000, 0x0400_0000);
pub(crate) const MEMORY_REGISTER: Class = Class::new(0x0e00_0010, 0x0600_0000);
/// Parallel arithmetic, packing, saturation, reversal, division, bit fields (A5.4).
pub(crate) const MEDIA: Class = Class::new(0x0e00_0010, 0x0600_0010);
pub(crate) const UDF: Class = Class::new(0xfff0_00f0, 0xe7f0_00f0);
/// LDM, STM (A5.5).
pub(crate) const MULTIPLE: Class = Class::new(0x0e00_0000, 0x0800_0000);
/// B, BL (A8.8.18, A8.8.25).
pub(crate) const BRANCH: Class = Class::new(0x0e00_0000, 0x0a00_0000);
pub(crate) const SVC: Class = Class::new(0x0f00_0000, 0x0f00_0000);

// ---- coprocessors, A32 and T32 but for the condition: A5.6, A7.5, A7.6, A7.8, A7.9
// -------------------------

/// MCRR, MRRC; those of floating point are VMOV.
pub(crate) const TWO_REGISTERS: Class = Class::new(0x0fe0_0000, 0x0c40_0000);
/// LDC, STC; those of floating point are VLDR, VSTR, VLDM, VSTM.
pub(crate) const COPROCESSOR_MEMORY: Class = Class::new(0x0e00_0000, 0x0c00_0000);
/// VMRS to the flags, of FPSCR.
pub(crate) const VMRS_FLAGS: Class = Class::new(0x0fff_ffff, 0x0ef1_fa10);
/// VMRS, VMSR.
pub(crate) const FLOATING_SYSTEM: Class = Class::new(0x0fe0_0fff, 0x0ee0_0a10);
pub(crate) const COPROCESSOR_DATA: Class = Class::new(0x0f00_0010, 0x0e00_0000);
/// MCR, MRC.
pub(crate) const COPROCESSOR_REGISTER: Class = Class::new(0x0f00_0010, 0x0e00_0010);

// ---- T32 of two bytes: A6.2 -------------------------------------------------------------------------------

pub(crate) const T_LITERAL: Class = Class::new(0xffff_f800, 0x0000_4800);
pub(crate) const T_ADR: Class = Class::new(0xffff_f800, 0x0000_a000);
/// ADD, CMP, MOV between all sixteen registers (A6.2.3).
pub(crate) const T_ADD: Class = Class::new(0xffff_ff00, 0x0000_4400);
pub(crate) const T_CMP: Class = Class::new(0xffff_ff00, 0x0000_4500);
pub(crate) const T_MOV: Class = Class::new(0xffff_ff00, 0x0000_4600);
pub(crate) const T_BX: Class = Class::new(0xffff_ff87, 0x0000_4700);
pub(crate) const T_BLX: Class = Class::new(0xffff_ff87, 0x0000_4780);
/// CBZ, CBNZ (A8.8.29).
pub(crate) const T_COMPARE_BRANCH: Class = Class::new(0xffff_f500, 0x0000_b100);
pub(crate) const T_PUSH: Class = Class::new(0xffff_fe00, 0x0000_b400);
pub(crate) const T_POP: Class = Class::new(0xffff_fe00, 0x0000_bc00);
pub(crate) const T_SETEND: Class = Class::new(0xffff_fff7, 0x0000_b650);
pub(crate) const T_CPS: Class = Class::new(0xffff_ffe8, 0x0000_b660);
/// IT, and with an empty mask the hints (A8.8.54, A6.2.5).
pub(crate) const T_IT: Class = Class::new(0xffff_ff00, 0x0000_bf00);
pub(crate) const T_UDF: Class = Class::new(0xffff_ff00, 0x0000_de00);
pub(crate) const T_SVC: Class = Class::new(0xffff_ff00, 0x0000_df00);
pub(crate) const T_CONDITIONAL: Class = Class::new(0xffff_f000, 0x0000_d000);
pub(crate) const T_BRANCH: Class = Class::new(0xffff_f800, 0x0000_e000);

// ---- T32 of four bytes: A6.3 ------------------------------------------------------------------------------

/// LDM and STM, by whether they count up or down from the base; between them RFE and SRS (A6.3.5).
pub(crate) const T_MULTIPLE: Class = Class::new(0xfe40_0000, 0xe800_0000);
/// TBB, TBH (A8.8.236).
pub(crate) const T_TABLE: Class = Class::new(0xfff0_ffe0, 0xe8d0_f000);
/// LDREX and its like, LDAEX and its like (A6.3.6; DDI 0487 F3.1.10).
pub(crate) const T_LDREX: Class = Class::new(0xfff0_0f00, 0xe850_0f00);
pub(crate) const T_STREX: Class = Class::new(0xfff0_0000, 0xe840_0000);
pub(crate) const T_LOAD_EXCLUSIVE: Class = Class::new(0xfff0_0040, 0xe8d0_0040);
pub(crate) const T_STORE_EXCLUSIVE: Class = Class::new(0xfff0_0040, 0xe8c0_0040);
/// LDA, STL.
pub(crate) const T_ORDERED: Class = Class::new(0xffe0_0fcf, 0xe8c0_0f8f);
/// LDRD, STRD: with an index or write-back (A6.3.6).
pub(crate) const T_DUAL: Class = Class::new(0xfe40_0000, 0xe840_0000);
/// Data processing: shifted register, modified immediate (A6.3.11, A6.3.1).
pub(crate) const T_DATA_SHIFTED: Class = Class::new(0xfe00_0000, 0xea00_0000);
pub(crate) const T_DATA_IMMEDIATE: Class = Class::new(0xfa00_8000, 0xf000_0000);
/// ADDW, SUBW, of the program counter ADR; MOVW, MOVT, saturation and bit fields (A6.3.3).
pub(crate) const T_PLAIN_IMMEDIATE: Class = Class::new(0xfa00_8000, 0xf200_0000);
/// Coprocessors and floating point (A6.3.18).
pub(crate) const T_COPROCESSOR: Class = Class::new(0xec00_0000, 0xec00_0000);
pub(crate) const T_SIMD_DATA: Class = Class::new(0xef00_0000, 0xef00_0000);
pub(crate) const T_SIMD_MEMORY: Class = Class::new(0xff10_0000, 0xf900_0000);
/// Branches and what is encoded beside them (A6.3.4).
pub(crate) const T_WIDE_BRANCHES: Class = Class::new(0xf800_8000, 0xf000_8000);
pub(crate) const T_WIDE_B: Class = Class::new(0xf800_d000, 0xf000_9000);
pub(crate) const T_WIDE_BL: Class = Class::new(0xf800_d000, 0xf000_d000);
pub(crate) const T_WIDE_BLX: Class = Class::new(0xf800_d001, 0xf000_c000);
pub(crate) const T_MSR: Class = Class::new(0xffe0_d0df, 0xf380_8000);
pub(crate) const T_HINT: Class = Class::new(0xffff_ff00, 0xf3af_8000);
pub(crate) const T_WIDE_CPS: Class = Class::new(0xffff_f800, 0xf3af_8000);
pub(crate) const T_CLREX: Class = Class::new(0xffff_ffff, 0xf3bf_8f2f);
pub(crate) const T_BARRIER: Class = Class::new(0xffff_ffc0, 0xf3bf_8f40);
pub(crate) const T_BXJ: Class = Class::new(0xfff0_ffff, 0xf3c0_8f00);
/// SUBS PC, LR, of which ERET is one (B9.3.19).
pub(crate) const T_EXCEPTION_RETURN: Class = Class::new(0xfff0_d000, 0xf3d0_8000);
pub(crate) const T_MRS: Class = Class::new(0xffff_f0ff, 0xf3ef_8000);
pub(crate) const T_MRS_ANY: Class = Class::new(0xffe0_d000, 0xf3e0_8000);
pub(crate) const T_HVC: Class = Class::new(0xfff0_f000, 0xf7e0_8000);
pub(crate) const T_SMC: Class = Class::new(0xfff0_f000, 0xf7f0_8000);
pub(crate) const T_WIDE_UDF: Class = Class::new(0xfff0_f000, 0xf7f0_a000);
pub(crate) const T_WIDE_CONDITIONAL: Class = Class::new(0xf800_d000, 0xf000_8000);
/// Single loads and stores (A6.3.7 to A6.3.10).
pub(crate) const T_MEMORY: Class = Class::new(0xfe00_0000, 0xf800_0000);
/// Of these, and of LDRD and VLDR, the loads relative to the program counter (A6.3.6 f., A7.6).
pub(crate) const T_MEMORY_LITERAL: Class = Class::new(0xfe1f_0000, 0xf81f_0000);
pub(crate) const T_DUAL_LITERAL: Class = Class::new(0xfe5f_0000, 0xe85f_0000);
pub(crate) const T_FLOATING_LITERAL: Class = Class::new(0xff3f_0e00, 0xed1f_0a00);
/// Register operations: shifts, extension, parallel arithmetic (A6.3.12).
pub(crate) const T_DATA_REGISTER: Class = Class::new(0xff00_f000, 0xfa00_f000);
/// Multiplication; long multiplication and division (A6.3.16 f.).
pub(crate) const T_MULTIPLY: Class = Class::new(0xff80_00c0, 0xfb00_0000);
pub(crate) const T_LONG_MULTIPLY: Class = Class::new(0xff80_0000, 0xfb80_0000);

// ---- branches that this backend writes --------------------------------------------------------------------

/// `b` over `offset` bytes, in A32 (A8.8.18, encoding A1). `None` where it does not reach.
pub(crate) fn branch_a32(offset: isize) -> Option<u32> {
    let from_ahead = i32::try_from(offset).ok()?.checked_sub(8)?;
    let reaches = from_ahead & 3 == 0 && (-(1 << 25)..1 << 25).contains(&from_ahead);
    reaches.then_some(0xea00_0000 | field(from_ahead.cast_unsigned(), 2, 24))
}

/// `b.w` over `offset` bytes, in T32 (A8.8.18, encoding T4), as two halfwords in memory.
pub(crate) fn branch_t32(offset: isize) -> Option<[u8; 4]> {
    let from_ahead = i32::try_from(offset).ok()?.checked_sub(4)?;
    if from_ahead & 1 != 0 || !(-(1 << 24)..1 << 24).contains(&from_ahead) {
        return None;
    }
    let bits = from_ahead.cast_unsigned();
    let sign = field(bits, 24, 1);
    let j = |low: u32| (field(bits, low, 1) ^ sign ^ 1) & 1;
    let first = 0xf000 | sign << 10 | field(bits, 12, 10);
    let second = 0x9000 | j(23) << 13 | j(22) << 11 | field(bits, 1, 11);
    let [a, b] = (first as u16).to_le_bytes();
    let [c, d] = (second as u16).to_le_bytes();
    Some([a, b, c, d])
}

/// The distance that B.W, BL and BLX of T32 go from the program counter (A8.8.18, T4).
pub(crate) const fn wide_offset(word: u32) -> i32 {
    let sign = field(word, 26, 1);
    let i1 = field(word, 13, 1) ^ sign ^ 1;
    let i2 = field(word, 11, 1) ^ sign ^ 1;
    let high = sign << 24 | i1 << 23 | i2 << 22;
    signed(high | field(word, 16, 10) << 12 | field(word, 0, 11) << 1, 25)
}

/// The distance that a conditional B.W goes from the program counter (A8.8.18, T3).
pub(crate) const fn wide_conditional_offset(word: u32) -> i32 {
    let high = field(word, 26, 1) << 20 | field(word, 11, 1) << 19 | field(word, 13, 1) << 18;
    signed(high | field(word, 16, 6) << 12 | field(word, 0, 11) << 1, 21)
}
