//! The encodings, spelt as in RFC 9669 (October 2024), with its sections.

/// One instruction of 64 bits (section 3.1). The wide one, LD_IMM64, is two of them (section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Operation and class.
    pub opcode: u8,
    /// The destination register.
    pub dst: u8,
    /// The source register, or what kind of immediate there is.
    pub src: u8,
    /// Signed, for jumps in instructions, for memory in bytes.
    pub offset: i16,
    /// Signed.
    pub imm: i32,
}

impl Insn {
    /// How many bytes one takes.
    pub const LEN: usize = 8;

    /// Reads one in the machine's byte order (section 3.1: the byte order also swaps the register fields).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [opcode, regs, a, b, i, j, k, l] = bytes;
        let (high, low) = (regs >> 4, regs & 15);
        let (dst, src) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        let (offset, imm) = (i16::from_ne_bytes([a, b]), i32::from_ne_bytes([i, j, k, l]));
        Self { opcode, dst, src, offset, imm }
    }

    /// The bytes in memory, in the machine's byte order. Only the low four bits of registers have room.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let (dst, src) = (self.dst & 15, self.src & 15);
        let regs = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        let ([a, b], [i, j, k, l]) = (self.offset.to_ne_bytes(), self.imm.to_ne_bytes());
        [self.opcode, regs, a, b, i, j, k, l]
    }

    /// The word that errors show: the bytes, the first one highest, as a manual writes them.
    #[must_use]
    pub const fn word(self) -> u64 {
        u64::from_be_bytes(self.to_bytes())
    }
}

/// Section 3.3: the classes, the low three bits of an opcode.
pub mod class {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const ALU: u8 = 4;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
    /// The bits of a class.
    pub const MASK: u8 = 0x07;
}

/// Section 4: the source operand is the immediate.
pub const K: u8 = 0x00;
/// Section 4: the source operand is a register.
pub const X: u8 = 0x08;

/// Section 4.1: arithmetic, the high four bits of an opcode.
pub mod alu {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const ADD: u8 = 0x00;
    pub const SUB: u8 = 0x10;
    pub const MUL: u8 = 0x20;
    /// With the offset 1: SDIV.
    pub const DIV: u8 = 0x30;
    pub const OR: u8 = 0x40;
    pub const AND: u8 = 0x50;
    pub const LSH: u8 = 0x60;
    pub const RSH: u8 = 0x70;
    pub const NEG: u8 = 0x80;
    /// With the offset 1: SMOD.
    pub const MOD: u8 = 0x90;
    pub const XOR: u8 = 0xa0;
    /// With the offset 8, 16 or 32: MOVSX.
    pub const MOV: u8 = 0xb0;
    pub const ARSH: u8 = 0xc0;
    /// Section 4.2.
    pub const END: u8 = 0xd0;
}

/// Section 4.3: jumps, the high four bits of an opcode.
pub mod jmp {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const JA: u8 = 0x00;
    pub const JEQ: u8 = 0x10;
    pub const JGT: u8 = 0x20;
    pub const JGE: u8 = 0x30;
    pub const JSET: u8 = 0x40;
    pub const JNE: u8 = 0x50;
    pub const JSGT: u8 = 0x60;
    pub const JSGE: u8 = 0x70;
    pub const CALL: u8 = 0x80;
    pub const EXIT: u8 = 0x90;
    pub const JLT: u8 = 0xa0;
    pub const JLE: u8 = 0xb0;
    pub const JSLT: u8 = 0xc0;
    pub const JSLE: u8 = 0xd0;
}

/// Section 5: modes, the high three bits of an opcode that loads or stores.
pub mod mode {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const IMM: u8 = 0x00;
    /// Section 5.5: deprecated.
    pub const ABS: u8 = 0x20;
    /// Section 5.5: deprecated.
    pub const IND: u8 = 0x40;
    pub const MEM: u8 = 0x60;
    pub const MEMSX: u8 = 0x80;
    pub const ATOMIC: u8 = 0xc0;
    /// The bits of a mode.
    pub const MASK: u8 = 0xe0;
}

/// Section 5: sizes.
pub mod size {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const W: u8 = 0x00;
    pub const H: u8 = 0x08;
    pub const B: u8 = 0x10;
    pub const DW: u8 = 0x18;
    /// The bits of a size.
    pub const MASK: u8 = 0x18;
}

/// Section 5.3: atomic operations, in the immediate.
pub mod atomic {
    #![allow(missing_docs, reason = "the RFC's names")]
    pub const ADD: i32 = 0x00;
    pub const OR: i32 = 0x40;
    pub const AND: i32 = 0x50;
    pub const XOR: i32 = 0xa0;
    pub const XCHG: i32 = 0xe0 | FETCH;
    pub const CMPXCHG: i32 = 0xf0 | FETCH;
    /// The value before goes into the source register.
    pub const FETCH: i32 = 0x01;
}

/// Section 5.4: the meaning of LD_IMM64's immediate, in its source register.
pub mod wide {
    /// The number itself.
    pub const NUMBER: u8 = 0;
    /// A map by its index: what helpers take.
    pub const MAP: u8 = 5;
    /// The address of the first value of an array, by its index, plus the second immediate.
    pub const MAP_VALUE: u8 = 6;
}
