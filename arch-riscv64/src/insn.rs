//! Named encodings and field extractors.
//!
//! A [`Class`] is a mask and a value over an instruction word; a compressed instruction is the low half of a
//! word whose upper half is zero, and its lowest two bits tell the two apart. Names and section numbers are
//! those of the RISC-V Instruction Set Manual, Volume I (Unprivileged, 20240411), unless a comment names
//! Volume II (Privileged, 20240411) or a later extension. Pure data, usable anywhere. Instructions are
//! little-endian on every machine (I 1.5): [`word_at`].

/// The instruction that `bytes` starts with, two bytes or four, whatever the byte order of this machine.
/// `None` where `bytes` are too few, or the instruction is longer than four bytes (I 1.5).
pub(crate) const fn word_at(bytes: &[u8]) -> Option<u32> {
    let Some(low) = bytes.first_chunk::<2>() else { return None };
    let low = u16::from_le_bytes(*low) as u32;
    if low & 0b11 != 0b11 {
        return Some(low);
    }
    if low & 0b1_1100 == 0b1_1100 {
        return None;
    }
    match bytes.first_chunk::<4>() {
        Some(word) => Some(u32::from_le_bytes(*word)),
        None => None,
    }
}

/// The length in bytes of the instruction `word`.
pub(crate) const fn len_bytes(word: u32) -> u8 {
    if word & 0b11 == 0b11 { 4 } else { 2 }
}

/// The instruction words with `word & mask == value`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    mask: u32,
    value: u32,
}

impl Class {
    /// A class of full instructions, or (with the upper half of `mask` zero) of compressed ones.
    const fn new(mask: u32, value: u32) -> Self {
        assert!(value & !mask == 0 && mask & 0b11 == 0b11);
        Self { mask, value }
    }

    pub(crate) const fn matches(self, word: u32) -> bool {
        word & self.mask == self.value
    }
}

// ---- breakpoints and the system: I 2.8, II 3.3 ------------------------------------------------------------

/// `c.ebreak` (I 27.5.4).
pub(crate) const C_EBREAK: Class = Class::new(0xffff, 0x9002);
/// `ebreak`.
pub(crate) const EBREAK: Class = Class::new(0xffff_ffff, 0x0010_0073);
/// `ecall`.
pub(crate) const ECALL: Class = Class::new(0xffff_ffff, 0x0000_0073);
/// `li a7, 139` (`rt_sigreturn`) and `ecall`.
pub(crate) const SIGNAL_RETURN: [u32; 2] = [0x08b0_0893, 0x0000_0073];
/// `wfi` (II 3.3.3).
pub(crate) const WFI: Class = Class::new(0xffff_ffff, 0x1050_0073);
/// `sret`, `mret` (II 3.3.2), `mnret` (Smrnmi).
pub(crate) const SRET: Class = Class::new(0xffff_ffff, 0x1020_0073);
/// See [`SRET`].
pub(crate) const MRET: Class = Class::new(0xffff_ffff, 0x3020_0073);
/// See [`SRET`].
pub(crate) const MNRET: Class = Class::new(0xffff_ffff, 0x7020_0073);
/// `sfence.vma rs1, rs2` (II 11.2.1).
pub(crate) const SFENCE_VMA: Class = Class::new(0xfe00_7fff, 0x1200_0073);
/// `wrs.nto`, `wrs.sto` (I 14.1, Zawrs): they wait on the reservation that a trap loses.
pub(crate) const WRS: Class = Class::new(0xfeff_ffff, 0x00d0_0073);
/// `fence`, with `fence.tso` and `pause` (I 2.7, 9.1).
pub(crate) const FENCE: Class = Class::new(0x707f, 0x000f);
/// `fence.i` (I 6.1).
pub(crate) const FENCE_I: Class = Class::new(0x707f, 0x100f);
/// `cbo.inval`, `cbo.clean`, `cbo.flush`, `cbo.zero` (I 19.7).
pub(crate) const CBO: Class = Class::new(0x7fff, 0x200f);

// ---- what reads or writes the program counter: I 2.4.1, 2.5, 27.4 -----------------------------------------

/// `auipc rd, imm`.
pub(crate) const AUIPC: Class = Class::new(0x7f, 0x17);
/// `lpad imm` (Zicfilp, I 33.1.1): `auipc x0`.
pub(crate) const LPAD: Class = Class::new(0xfff, 0x017);
/// `jal rd, offset`.
pub(crate) const JAL: Class = Class::new(0x7f, 0x6f);
/// `jalr rd, offset(rs1)`.
pub(crate) const JALR: Class = Class::new(0x707f, 0x67);
/// `beq`, `bne`, `blt`, `bge`, `bltu`, `bgeu`: funct3 is neither 2 nor 3.
pub(crate) const BRANCH: Class = Class::new(0x7f, 0x63);
/// `c.j offset`.
pub(crate) const C_J: Class = Class::new(0xe003, 0xa001);
/// `c.beqz rs1', offset`.
pub(crate) const C_BEQZ: Class = Class::new(0xe003, 0xc001);
/// `c.bnez rs1', offset`.
pub(crate) const C_BNEZ: Class = Class::new(0xe003, 0xe001);
/// `c.jr rs1`; rs1 = 0 is reserved.
pub(crate) const C_JR: Class = Class::new(0xf07f, 0x8002);
/// `c.jalr rs1`; rs1 = 0 is [`C_EBREAK`].
pub(crate) const C_JALR: Class = Class::new(0xf07f, 0x9002);
/// `c.nop`.
pub(crate) const C_NOP: Class = Class::new(0xffff, 0x0001);
/// `nop`: `addi x0, x0, 0`.
pub(crate) const NOP: Class = Class::new(0xffff_ffff, 0x0000_0013);

// ---- reservations: I 13.2 ---------------------------------------------------------------------------------

/// `lr.w`, `lr.d`: width in funct3.
pub(crate) const LR: Class = Class::new(0xf9f0_607f, 0x1000_202f);
/// `sc.w`, `sc.d`.
pub(crate) const SC: Class = Class::new(0xf800_607f, 0x1800_202f);

// ---- what is none -----------------------------------------------------------------------------------------

/// `c.unimp`: the all-zero halfword, defined illegal (I 27.2).
pub(crate) const C_UNIMP: Class = Class::new(0xffff, 0x0000);

/// What this backend puts into text.
pub(crate) const BREAKPOINT: u16 = 0x9002;

/// `count` bits from bit `low` on.
pub(crate) const fn field(word: u32, low: u32, count: u32) -> u32 {
    word >> low & ((1 << count) - 1)
}

/// Bits 6 to 2 of a full instruction: the major opcode (I 34, table 70).
pub(crate) const fn opcode(word: u32) -> u32 {
    field(word, 2, 5)
}

/// Bits 14 to 12.
pub(crate) const fn funct3(word: u32) -> u32 {
    field(word, 12, 3)
}

/// Bits 31 to 25.
pub(crate) const fn funct7(word: u32) -> u32 {
    field(word, 25, 7)
}

/// The destination register of a full instruction, and of most compressed ones.
pub(crate) const fn rd(word: u32) -> u8 {
    field(word, 7, 5) as u8
}

/// The first source register of a full instruction.
pub(crate) const fn rs1(word: u32) -> u8 {
    field(word, 15, 5) as u8
}

/// The second source register.
pub(crate) const fn rs2(word: u32) -> u8 {
    field(word, 20, 5) as u8
}

/// The compressed instructions' rs1': X8 to X15 (I 27.2).
pub(crate) const fn rs1_prime(word: u32) -> u8 {
    8 + field(word, 7, 3) as u8
}

const fn sign_extended(value: u32, bits: u32) -> i32 {
    (value << (32 - bits)) as i32 >> (32 - bits)
}

/// The I-immediate (I 2.3).
pub(crate) const fn immediate_i(word: u32) -> i16 {
    (word as i32 >> 20) as i16
}

/// The U-immediate.
pub(crate) const fn immediate_u(word: u32) -> i32 {
    (word & 0xffff_f000) as i32
}

/// The J-immediate.
pub(crate) const fn immediate_j(word: u32) -> i32 {
    let bits = field(word, 31, 1) << 20 | field(word, 12, 8) << 12 | field(word, 20, 1) << 11;
    sign_extended(bits | field(word, 21, 10) << 1, 21)
}

/// The B-immediate.
pub(crate) const fn immediate_b(word: u32) -> i16 {
    let bits = field(word, 31, 1) << 12 | field(word, 7, 1) << 11 | field(word, 25, 6) << 5;
    sign_extended(bits | field(word, 8, 4) << 1, 13) as i16
}

/// The offset of [`C_J`] (I 27.4).
pub(crate) const fn offset_cj(word: u32) -> i32 {
    let high = field(word, 12, 1) << 11 | field(word, 8, 1) << 10 | field(word, 9, 2) << 8;
    let low = field(word, 6, 1) << 7 | field(word, 7, 1) << 6 | field(word, 2, 1) << 5;
    sign_extended(high | low | field(word, 11, 1) << 4 | field(word, 3, 3) << 1, 12)
}

/// The offset of [`C_BEQZ`] and [`C_BNEZ`].
pub(crate) const fn offset_cb(word: u32) -> i16 {
    let high = field(word, 12, 1) << 8 | field(word, 5, 2) << 6 | field(word, 2, 1) << 5;
    sign_extended(high | field(word, 10, 2) << 3 | field(word, 3, 2) << 1, 9) as i16
}

/// `jal x0, offset`, if `offset` is in its reach of 1 MiB.
pub(crate) const fn jump(offset: isize) -> Option<u32> {
    if offset & 1 != 0 || offset < -(1 << 20) || offset >= 1 << 20 {
        return None;
    }
    let offset = offset as u32;
    let high = field(offset, 20, 1) << 31 | field(offset, 1, 10) << 21;
    Some(high | field(offset, 11, 1) << 20 | field(offset, 12, 8) << 12 | 0x6f)
}

/// Where a direct jump or branch goes, in bytes from itself, and whether it may fall through.
pub(crate) const fn direct_branch(word: u32) -> Option<(i32, bool)> {
    if JAL.matches(word) {
        Some((immediate_j(word), rd(word) != 0))
    } else if BRANCH.matches(word) {
        Some((immediate_b(word) as i32, true))
    } else if C_J.matches(word) {
        Some((offset_cj(word), false))
    } else if C_BEQZ.matches(word) || C_BNEZ.matches(word) {
        Some((offset_cb(word) as i32, true))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_told_by_the_lowest_bits() {
        assert_eq!(word_at(&[0x01, 0x00, 0xff, 0xff]), Some(1));
        assert_eq!(word_at(&[0x13, 0x00, 0x00, 0x80]), Some(0x8000_0013));
        assert_eq!(word_at(&[0x13, 0x00, 0x00]), None);
        assert_eq!(word_at(&[0x01]), None);
        assert_eq!(word_at(&[0x1f, 0, 0, 0, 0, 0]), None, "six bytes");
        assert_eq!((len_bytes(0x9002), len_bytes(0x0010_0073)), (2, 4));
    }

    #[test]
    fn a_jump_has_the_offset_that_it_was_made_with() {
        for offset in [0, 2, -2, 0x7fe, 0x800, -0x800, 0xf_fffe, -0x10_0000, 0x5_5554, -0x5_5556] {
            let word = jump(offset).expect("in reach");
            assert_eq!((immediate_j(word) as isize, rd(word)), (offset, 0), "{offset:#x}");
            assert!(JAL.matches(word));
        }
        assert_eq!([jump(1), jump(0x10_0000), jump(-0x10_0002)], [None; 3]);
    }
}
