//! A function for each form of instruction, for who builds programs; an [`Insn`] displays as LLVM spells it.
//!
//! ```
//! use probe_bpf::asm::{alu64_k, exit, jump_x, load};
//! use probe_bpf::insn::{alu, jmp, size};
//! assert_eq!(alu64_k(alu::MOV, 0, 7).to_string(), "r0 = 7");
//! assert_eq!(load(size::W, 2, 1, 16).to_string(), "r2 = *(u32 *)(r1 + 16)");
//! assert_eq!(jump_x(jmp::JSGT, 2, 3, -4).to_string(), "if r2 s> r3 goto -4");
//! assert_eq!(exit().to_string(), "exit");
//! ```

use crate::insn::{Insn, K, X, class, jmp, mode, size, wide};

const fn insn(opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> Insn {
    Insn { opcode, dst, src, offset, imm }
}

/// 64-bit arithmetic with a number.
#[must_use]
pub const fn alu64_k(code: u8, dst: u8, imm: i32) -> Insn {
    insn(class::ALU64 | K | code, dst, 0, 0, imm)
}

/// 64-bit arithmetic with a register.
#[must_use]
pub const fn alu64_x(code: u8, dst: u8, src: u8) -> Insn {
    insn(class::ALU64 | X | code, dst, src, 0, 0)
}

/// 32-bit arithmetic with a number.
#[must_use]
pub const fn alu32_k(code: u8, dst: u8, imm: i32) -> Insn {
    insn(class::ALU | K | code, dst, 0, 0, imm)
}

/// 32-bit arithmetic with a register.
#[must_use]
pub const fn alu32_x(code: u8, dst: u8, src: u8) -> Insn {
    insn(class::ALU | X | code, dst, src, 0, 0)
}

/// An instruction with its form chosen by the offset: SDIV, SMOD (1), MOVSX (8, 16, 32).
#[must_use]
pub const fn with_offset(of: Insn, offset: i16) -> Insn {
    Insn { offset, ..of }
}

/// A jump where the register compares so with a number.
#[must_use]
pub const fn jump_k(code: u8, dst: u8, imm: i32, offset: i16) -> Insn {
    insn(class::JMP | K | code, dst, 0, offset, imm)
}

/// A jump where the register compares so with another.
#[must_use]
pub const fn jump_x(code: u8, dst: u8, src: u8, offset: i16) -> Insn {
    insn(class::JMP | X | code, dst, src, offset, 0)
}

/// As [`jump_k`], of the low 32 bits.
#[must_use]
pub const fn jump32_k(code: u8, dst: u8, imm: i32, offset: i16) -> Insn {
    insn(class::JMP32 | K | code, dst, 0, offset, imm)
}

/// As [`jump_x`], of the low 32 bits.
#[must_use]
pub const fn jump32_x(code: u8, dst: u8, src: u8, offset: i16) -> Insn {
    insn(class::JMP32 | X | code, dst, src, offset, 0)
}

/// A jump in any case.
#[must_use]
pub const fn ja(offset: i16) -> Insn {
    insn(class::JMP | jmp::JA, 0, 0, offset, 0)
}

/// A jump in any case, over any distance.
#[must_use]
pub const fn gotol(distance: i32) -> Insn {
    insn(class::JMP32 | jmp::JA, 0, 0, 0, distance)
}

/// A helper by its number.
#[must_use]
pub const fn call(number: i32) -> Insn {
    insn(class::JMP | jmp::CALL, 0, 0, 0, number)
}

/// The end; r0 is the result.
#[must_use]
pub const fn exit() -> Insn {
    insn(class::JMP | jmp::EXIT, 0, 0, 0, 0)
}

/// Loads from `src + offset`.
#[must_use]
pub const fn load(size: u8, dst: u8, src: u8, offset: i16) -> Insn {
    insn(class::LDX | mode::MEM | size, dst, src, offset, 0)
}

/// Loads a signed number from `src + offset`.
#[must_use]
pub const fn load_sx(size: u8, dst: u8, src: u8, offset: i16) -> Insn {
    insn(class::LDX | mode::MEMSX | size, dst, src, offset, 0)
}

/// Stores a register at `dst + offset`.
#[must_use]
pub const fn store(size: u8, dst: u8, offset: i16, src: u8) -> Insn {
    insn(class::STX | mode::MEM | size, dst, src, offset, 0)
}

/// Stores a number at `dst + offset`.
#[must_use]
pub const fn store_k(size: u8, dst: u8, offset: i16, imm: i32) -> Insn {
    insn(class::ST | mode::MEM | size, dst, 0, offset, imm)
}

/// An atomic operation at `dst + offset`.
#[must_use]
pub const fn atomic(size: u8, code: i32, dst: u8, offset: i16, src: u8) -> Insn {
    insn(class::STX | mode::ATOMIC | size, dst, src, offset, code)
}

const fn wide(dst: u8, kind: u8, low: i32, high: i32) -> [Insn; 2] {
    [insn(class::LD | mode::IMM | size::DW, dst, kind, 0, low), insn(0, 0, 0, 0, high)]
}

/// A number of 64 bits.
#[must_use]
pub const fn load_imm64(dst: u8, number: u64) -> [Insn; 2] {
    wide(dst, wide::NUMBER, number as i32, (number >> 32) as i32)
}

/// A map, for helpers.
#[must_use]
pub const fn load_map(dst: u8, map: i32) -> [Insn; 2] {
    wide(dst, wide::MAP, map, 0)
}

/// The address of a byte of an array's values.
#[must_use]
pub const fn load_map_value(dst: u8, map: i32, offset: u32) -> [Insn; 2] {
    wide(dst, wide::MAP_VALUE, map, offset as i32)
}
