//! An instruction's parts: prefixes, opcode map, opcode, ModRM, length in bytes.
//!
//! Only the structure, which is the same for every instruction that exists or will exist; whether an encoding
//! is valid is [`crate::length`]'s business. Source: SDM volume 2, chapter 2; AMD APM volume 3, chapter 1.

use crate::MAX_INSN_LEN;
use crate::mode::Mode;

/// Legacy prefixes, as a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefixes(u8);

impl Prefixes {
    /// 66: operand size, or part of the opcode.
    pub const OPERAND_SIZE: Self = Self(1);
    /// 67: address size.
    pub const ADDRESS_SIZE: Self = Self(2);
    /// F0: LOCK.
    pub const LOCK: Self = Self(4);
    /// F3: REP, or part of the opcode.
    pub const REP: Self = Self(8);
    /// F2: REPNE (BND before branches), or part of the opcode.
    pub const REPNE: Self = Self(16);
    /// 64 or 65: an access through FS or GS.
    pub const FS_OR_GS: Self = Self(32);

    /// Whether all prefixes of `other` are present.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The opcode map that an opcode belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// One-byte opcodes.
    Primary,
    /// 0F xx.
    Escape0F,
    /// 0F 38 xx.
    Escape0F38,
    /// 0F 3A xx.
    Escape0F3A,
    /// VEX (C4, C5), with the map number.
    Vex(u8),
    /// EVEX (62), with the map number.
    Evex(u8),
    /// XOP (8F), with the map number.
    Xop(u8),
}

/// A ModRM byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModRm(pub u8);

impl ModRm {
    /// The addressing form; 3 is a register.
    #[must_use]
    pub const fn mode(self) -> u8 {
        self.0 >> 6
    }

    /// The register or opcode-extension field.
    #[must_use]
    pub const fn reg(self) -> u8 {
        self.0 >> 3 & 7
    }

    /// The register-or-memory field.
    #[must_use]
    pub const fn rm(self) -> u8 {
        self.0 & 7
    }

    /// Whether the operand is a register.
    #[must_use]
    pub const fn is_register(self) -> bool {
        self.mode() == 3
    }
}

/// One instruction, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    bytes: [u8; MAX_INSN_LEN],
    /// Its legacy prefixes.
    pub prefixes: Prefixes,
    /// Its REX prefix, 0 where there is none (or a void one, not right before the opcode).
    pub rex: u8,
    /// Its opcode map.
    pub map: Map,
    /// Its opcode.
    pub opcode: u8,
    /// Its ModRM byte, where the opcode has one.
    pub modrm: Option<ModRm>,
    /// Where the ModRM byte is, or would be: the first byte after the opcode.
    pub modrm_at: u8,
    /// Its length in bytes.
    pub len_bytes: u8,
}

/// REX.W: 64-bit operands.
const REX_W: u8 = 8;
/// REX.R: the fourth bit of ModRM.reg.
pub const REX_R: u8 = 4;
/// REX.X: the fourth bit of SIB.index.
pub const REX_X: u8 = 2;
/// REX.B: the fourth bit of ModRM.rm, SIB.base or the opcode's register.
pub const REX_B: u8 = 1;

impl Insn {
    /// Takes the instruction apart that `bytes` start with. `None` where it does not end within them, or
    /// within 15 bytes, or begins with REX2 (APX).
    #[must_use]
    pub fn parse<M: Mode>(bytes: &[u8]) -> Option<Self> {
        let mut insn = Self {
            bytes: [0; MAX_INSN_LEN],
            prefixes: Prefixes::default(),
            rex: 0,
            map: Map::Primary,
            opcode: 0,
            modrm: None,
            modrm_at: 0,
            len_bytes: 0,
        };
        let readable = bytes.len().min(MAX_INSN_LEN);
        match bytes.first_chunk() {
            // A length that the compiler knows: moves instead of a call of memcpy, in every step of a walk.
            Some(bytes) => insn.bytes = *bytes,
            None => insn.bytes.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from),
        }
        let at = insn.parse_prefixes::<M>()?;
        let at = insn.parse_opcode::<M>(at)?;
        insn.modrm_at = u8::try_from(at).ok()?;
        let mut len = at;
        if insn.has_modrm::<M>() {
            let modrm = ModRm(insn.byte(at)?);
            insn.modrm = Some(modrm);
            len += 1 + insn.address_len::<M>(modrm, at)?;
        }
        len += insn.immediate_len::<M>();
        insn.len_bytes = u8::try_from(len).ok()?;
        (len <= readable).then_some(insn)
    }

    /// The bytes of the instruction.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len_bytes)).unwrap_or(&self.bytes)
    }

    /// The instruction, followed by zeros.
    pub(crate) fn padded(&self) -> [u8; MAX_INSN_LEN] {
        let mut padded = [0; MAX_INSN_LEN];
        for (to, from) in padded.iter_mut().zip(self.bytes()) {
            *to = *from;
        }
        padded
    }

    /// Whether REX.W is set.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        self.rex & REX_W != 0
    }

    /// Whether `prefix` is there.
    #[must_use]
    pub const fn has(&self, prefix: Prefixes) -> bool {
        self.prefixes.has(prefix)
    }

    /// Whether the operand is addressed relative to the instruction pointer.
    #[must_use]
    pub fn is_ip_relative<M: Mode>(&self) -> bool {
        M::IS_LONG
            && self.modrm.is_some_and(|modrm| modrm.mode() == 0 && modrm.rm() == 5)
            && !self.ignores_modrm_mode()
    }

    /// The little-endian signed number of `len` bytes (1, 2 or 4) that ends the instruction: a branch's
    /// displacement, an immediate.
    #[must_use]
    pub fn trailing_i32(&self, len: u8) -> i32 {
        self.signed_at(self.len_bytes.saturating_sub(len), len)
    }

    /// The little-endian signed number of `len` bytes (1, 2 or 4) at byte `at`.
    #[must_use]
    pub fn signed_at(&self, at: u8, len: u8) -> i32 {
        let byte = |i: u8| self.byte(usize::from(at + i)).unwrap_or(0);
        match len {
            1 => i32::from(byte(0) as i8),
            2 => i32::from(i16::from_le_bytes([byte(0), byte(1)])),
            _ => i32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]),
        }
    }

    /// The byte at `at`, which may lie behind the instruction.
    pub(crate) fn byte(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    /// MOV to and from control and debug registers: the ModRM mode bits are ignored and taken as 3.
    fn ignores_modrm_mode(&self) -> bool {
        self.map == Map::Escape0F && matches!(self.opcode, 0x20..=0x23)
    }

    fn parse_prefixes<M: Mode>(&mut self) -> Option<usize> {
        for at in 0..MAX_INSN_LEN {
            let byte = self.byte(at)?;
            let prefix = match byte {
                0x66 => Prefixes::OPERAND_SIZE,
                0x67 => Prefixes::ADDRESS_SIZE,
                0xf0 => Prefixes::LOCK,
                0xf2 => Prefixes::REPNE,
                0xf3 => Prefixes::REP,
                0x64 | 0x65 => Prefixes::FS_OR_GS,
                0x26 | 0x2e | 0x36 | 0x3e => Prefixes::default(),
                0x40..=0x4f if M::IS_LONG => {
                    self.rex = byte;
                    continue;
                }
                _ => return Some(at),
            };
            // A REX prefix counts only right before the opcode.
            self.rex = 0;
            // The last segment override wins; in 64-bit mode the four old ones are no overrides at all.
            if !M::IS_LONG && matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e) {
                self.prefixes = self.prefixes.without(Prefixes::FS_OR_GS);
            }
            self.prefixes = self.prefixes.with(prefix);
        }
        None
    }

    /// Reads the opcode at `at` and returns where the ModRM byte would be.
    fn parse_opcode<M: Mode>(&mut self, at: usize) -> Option<usize> {
        let first = self.byte(at)?;
        let second = self.byte(at + 1).unwrap_or(0);
        // Outside 64-bit mode these four are old instructions unless what follows looks like a register
        // ModRM.
        let is_vector = M::IS_LONG || second >= 0xc0;
        let (map, opcode_at) = match first {
            0x0f => match second {
                0x38 => (Map::Escape0F38, at + 2),
                0x3a => (Map::Escape0F3A, at + 2),
                _ => (Map::Escape0F, at + 1),
            },
            0xc5 if is_vector => (Map::Vex(1), at + 2),
            0xc4 if is_vector => (Map::Vex(second & 0x1f), at + 3),
            0x62 if is_vector => (Map::Evex(second & 7), at + 4),
            0x8f if second & 0x1f >= 8 => (Map::Xop(second & 0x1f), at + 3),
            0xd5 if M::IS_LONG => return None,
            _ => (Map::Primary, at),
        };
        self.map = map;
        self.opcode = self.byte(opcode_at)?;
        Some(opcode_at + 1)
    }

    fn has_modrm<M: Mode>(&self) -> bool {
        match self.map {
            Map::Primary => match self.opcode {
                0x00..=0x3f => self.opcode & 7 < 4,
                0x62 => !M::IS_LONG,
                0x63 | 0x69 | 0x6b | 0x80..=0x8f | 0xc0 | 0xc1 | 0xc4..=0xc7 | 0xd0..=0xd3 | 0xd8..=0xdf => {
                    true
                }
                0xf6 | 0xf7 | 0xfe | 0xff => true,
                _ => false,
            },
            Map::Escape0F => !matches!(
                self.opcode,
                0x04..=0x0c | 0x0e | 0x30..=0x37 | 0x77 | 0x80..=0x8f | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf
            ),
            Map::Vex(1) => self.opcode != 0x77,
            _ => true,
        }
    }

    /// The bytes of SIB and displacement after the ModRM byte at `at`.
    fn address_len<M: Mode>(&self, modrm: ModRm, at: usize) -> Option<usize> {
        if modrm.is_register() || self.ignores_modrm_mode() {
            return Some(0);
        }
        if !M::IS_LONG && self.has(Prefixes::ADDRESS_SIZE) {
            return Some(match (modrm.mode(), modrm.rm()) {
                (0, 6) | (2, _) => 2,
                (1, _) => 1,
                _ => 0,
            });
        }
        let sib = usize::from(modrm.rm() == 4);
        let base = if sib == 1 { self.byte(at + 1)? & 7 } else { modrm.rm() };
        let displacement = match modrm.mode() {
            0 if base == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        Some(sib + displacement)
    }

    fn immediate_len<M: Mode>(&self) -> usize {
        let narrow = self.has(Prefixes::OPERAND_SIZE) && !self.is_wide();
        match self.map {
            Map::Primary => self.primary_immediate_len::<M>(narrow),
            Map::Escape0F => match self.opcode {
                0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => 1,
                // EXTRQ and INSERTQ (SSE4a).
                0x78 if self.has(Prefixes::OPERAND_SIZE) || self.has(Prefixes::REPNE) => 2,
                0x80..=0x8f if narrow && !M::IS_LONG => 2,
                0x80..=0x8f => 4,
                _ => 0,
            },
            Map::Escape0F3A | Map::Vex(3) | Map::Evex(3) | Map::Xop(8) => 1,
            Map::Vex(1) | Map::Evex(1) => match self.opcode {
                0x70..=0x73 | 0xc2 | 0xc4..=0xc6 => 1,
                _ => 0,
            },
            Map::Vex(7) | Map::Evex(7) | Map::Xop(10) => 4,
            Map::Escape0F38 | Map::Vex(_) | Map::Evex(_) | Map::Xop(_) => 0,
        }
    }

    fn primary_immediate_len<M: Mode>(&self, narrow: bool) -> usize {
        let word = if narrow { 2 } else { 4 };
        let group3_test = self.modrm.is_some_and(|modrm| modrm.reg() < 2);
        match self.opcode {
            0x00..=0x3f if self.opcode & 7 == 4 => 1,
            0x00..=0x3f if self.opcode & 7 == 5 => word,
            0x6a | 0x6b | 0x70..=0x80 | 0x82 | 0x83 | 0xa8 | 0xb0..=0xb7 | 0xc0 | 0xc1 | 0xc6 | 0xcd => 1,
            0xd4 | 0xd5 | 0xe0..=0xe7 | 0xeb => 1,
            0x68 | 0x69 | 0x81 | 0xa9 | 0xc7 => word,
            0xb8..=0xbf if self.is_wide() => 8,
            0xb8..=0xbf => word,
            0xf6 if group3_test => 1,
            0xf7 if group3_test => word,
            // Near branches: Intel ignores the operand-size prefix in 64-bit mode; AMD does not, see
            // `length`.
            0xe8 | 0xe9 if M::IS_LONG => 4,
            0xe8 | 0xe9 => word,
            0xc2 | 0xca => 2,
            0xc8 => 3,
            0x9a | 0xea => word + 2,
            0xa0..=0xa3 => match (M::IS_LONG, self.has(Prefixes::ADDRESS_SIZE)) {
                (true, false) => 8,
                (true, true) | (false, false) => 4,
                (false, true) => 2,
            },
            _ => 0,
        }
    }
}
