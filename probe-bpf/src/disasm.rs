//! An instruction as text, in LLVM's spelling, which is also that of the kernel's documents.

use crate::insn::{Insn, X, alu, atomic, class, jmp, mode, size, wide};
use core::fmt;

impl fmt::Display for Insn {
    /// A word that is no instruction is written as a number. The first half of LD_IMM64 shows only the low
    /// half of its immediate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode & class::MASK {
            class::ALU | class::ALU64 => arithmetic(self, f),
            class::JMP | class::JMP32 => jump(self, f),
            class::LD => match (self.opcode, self.src) {
                (0x18, wide::NUMBER) => write!(f, "r{} = {} ll", self.dst, self.imm),
                (0x18, wide::MAP) => write!(f, "r{} = map[{}]", self.dst, self.imm),
                (0x18, wide::MAP_VALUE) => write!(f, "r{} = &map[{}]", self.dst, self.imm),
                _ => unknown(self, f),
            },
            _ => memory(self, f),
        }
    }
}

fn unknown(insn: &Insn, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, ".8byte {:#018x}", insn.word())
}

fn operand(insn: &Insn, letter: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if insn.opcode & X == 0 { write!(f, "{}", insn.imm) } else { write!(f, "{letter}{}", insn.src) }
}

fn arithmetic(insn: &Insn, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_wide = insn.opcode & class::MASK == class::ALU64;
    let (letter, dst) = (if is_wide { 'r' } else { 'w' }, insn.dst);
    let operator = match (insn.opcode & 0xf0, insn.offset) {
        (alu::ADD, 0) => "+=",
        (alu::SUB, 0) => "-=",
        (alu::MUL, 0) => "*=",
        (alu::DIV, 0) => "/=",
        (alu::DIV, 1) => "s/=",
        (alu::OR, 0) => "|=",
        (alu::AND, 0) => "&=",
        (alu::LSH, 0) => "<<=",
        (alu::RSH, 0) => ">>=",
        (alu::NEG, 0) => return write!(f, "{letter}{dst} = -{letter}{dst}"),
        (alu::MOD, 0) => "%=",
        (alu::MOD, 1) => "s%=",
        (alu::XOR, 0) => "^=",
        (alu::MOV, 0) => "=",
        (alu::MOV, bits) => return write!(f, "{letter}{dst} = (s{bits}){letter}{}", insn.src),
        (alu::ARSH, 0) => "s>>=",
        (alu::END, 0) => {
            let order = if is_wide { "bswap" } else { ["le", "be"][usize::from(insn.opcode & X != 0)] };
            return write!(f, "r{dst} = {order}{} r{dst}", insn.imm);
        }
        _ => return unknown(insn, f),
    };
    write!(f, "{letter}{dst} {operator} ")?;
    operand(insn, letter, f)
}

fn jump(insn: &Insn, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_wide = insn.opcode & class::MASK == class::JMP;
    let operator = match insn.opcode & 0xf0 {
        jmp::JA if is_wide => return write!(f, "goto {:+}", insn.offset),
        jmp::JA => return write!(f, "gotol {:+}", insn.imm),
        jmp::CALL if is_wide => return write!(f, "call {}", insn.imm),
        jmp::EXIT if is_wide => return f.write_str("exit"),
        jmp::JEQ => "==",
        jmp::JGT => ">",
        jmp::JGE => ">=",
        jmp::JSET => "&",
        jmp::JNE => "!=",
        jmp::JSGT => "s>",
        jmp::JSGE => "s>=",
        jmp::JLT => "<",
        jmp::JLE => "<=",
        jmp::JSLT => "s<",
        jmp::JSLE => "s<=",
        _ => return unknown(insn, f),
    };
    let letter = if is_wide { 'r' } else { 'w' };
    write!(f, "if {letter}{} {operator} ", insn.dst)?;
    operand(insn, letter, f)?;
    write!(f, " goto {:+}", insn.offset)
}

/// `*(u32 *)(r1 + 8)` without the star before: a type, a register, an offset.
struct Place(&'static str, u8, i16);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(kind, register, offset) = self;
        let sign = if *offset < 0 { '-' } else { '+' };
        write!(f, "({kind} *)(r{register} {sign} {})", offset.unsigned_abs())
    }
}

fn memory(insn: &Insn, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Insn { opcode, dst, src, offset, imm } = *insn;
    let is_signed = opcode & mode::MASK == mode::MEMSX;
    let kind = match (opcode & size::MASK, is_signed) {
        (size::B, false) => "u8",
        (size::H, false) => "u16",
        (size::W, false) => "u32",
        (size::B, true) => "s8",
        (size::H, true) => "s16",
        (size::W, true) => "s32",
        _ => "u64",
    };
    let letter = if opcode & mode::MASK == mode::ATOMIC && kind == "u32" { 'w' } else { 'r' };
    let (from, to) = (Place(kind, src, offset), Place(kind, dst, offset));
    match (opcode & class::MASK, opcode & mode::MASK) {
        (class::LDX, mode::MEM | mode::MEMSX) => write!(f, "r{dst} = *{from}"),
        (class::ST, mode::MEM) => write!(f, "*{to} = {imm}"),
        (class::STX, mode::MEM) => write!(f, "*{to} = r{src}"),
        (class::STX, mode::ATOMIC) => {
            let (operator, name) = match imm & !atomic::FETCH {
                atomic::ADD => ("+=", "add"),
                atomic::OR => ("|=", "or"),
                atomic::AND => ("&=", "and"),
                atomic::XOR => ("^=", "xor"),
                0xe0 => {
                    let bits = if letter == 'w' { "32_32" } else { "_64" };
                    return write!(f, "{letter}{src} = xchg{bits}({}, {letter}{src})", Bare(&to));
                }
                0xf0 => {
                    let bits = if letter == 'w' { "32_32" } else { "_64" };
                    return write!(f, "{letter}0 = cmpxchg{bits}({}, {letter}0, {letter}{src})", Bare(&to));
                }
                _ => return unknown(insn, f),
            };
            if imm & atomic::FETCH == 0 {
                return write!(f, "lock *{to} {operator} {letter}{src}");
            }
            write!(f, "{letter}{src} = atomic_fetch_{name}({to}, {letter}{src})")
        }
        _ => unknown(insn, f),
    }
}

/// A place without its type.
struct Bare<'a>(&'a Place);

impl fmt::Display for Bare<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place(_, register, offset) = self.0;
        let sign = if *offset < 0 { '-' } else { '+' };
        write!(f, "r{register} {sign} {}", offset.unsigned_abs())
    }
}
