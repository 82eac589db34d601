//! Loading: everything is checked once, so that a run can only fail on values.
//!
//! An allow-list: an instruction that is not named here is refused, and so are fields that RFC 9669 wants to
//! be zero (section 3.1).

use crate::helpers::{Helpers, MAP_HELPERS};
use crate::insn::{Insn, X, alu, atomic, class, jmp, mode, size, wide};
use crate::memory::value_address;
use crate::step::{Op, Step};
use alloc::vec::Vec;
use core::fmt;

/// The most instructions of a program.
pub const MAX_INSNS: usize = 1 << 16;

/// A program that has been checked.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) steps: Vec<Step>,
    /// Whether r10 is read anywhere.
    pub(crate) uses_stack: bool,
}

/// Why a program cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The index of the instruction.
    pub pc: usize,
    /// Its bytes, the first one highest.
    pub word: u64,
    /// What is wrong with it.
    pub reason: Refusal,
}

/// What is wrong with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// There are none, or more than [`MAX_INSNS`].
    Length,
    /// The bytes are no whole number of instructions.
    Partial,
    /// The opcode is not one of RFC 9669, or its other fields choose a form that is not.
    Unknown,
    /// A packet access of section 5.5, which is deprecated.
    Deprecated,
    /// A field that is not used is not zero.
    Unused,
    /// A register above r10.
    Register,
    /// r10 would be written.
    FramePointer,
    /// A jump to where there is no instruction.
    JumpOutside,
    /// A jump into the second half of LD_IMM64.
    JumpIntoWide,
    /// The second half of LD_IMM64 is missing or not zero where it should be.
    HalfWide,
    /// The last instruction does not end the program.
    FallsOff,
    /// An unknown helper, one by its type's number, or a function of the program.
    Helper,
    /// There is no map of this index.
    Map,
    /// There is no memory for it.
    NoMemory,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            Refusal::Length => "a program has between 1 and 65536 instructions",
            Refusal::Partial => "the bytes end within an instruction",
            Refusal::Unknown => "RFC 9669 has no such instruction",
            Refusal::Deprecated => "packet accesses are deprecated (RFC 9669, section 5.5)",
            Refusal::Unused => "a field that this instruction does not use is not zero",
            Refusal::Register => "the last register is r10",
            Refusal::FramePointer => "r10 can only be read",
            Refusal::JumpOutside => "the jump leads out of the program",
            Refusal::JumpIntoWide => "the jump leads into the second half of an instruction",
            Refusal::HalfWide => "the second half of this instruction is missing or malformed",
            Refusal::FallsOff => "the program goes on behind its last instruction",
            Refusal::Helper => "nobody knows this helper",
            Refusal::Map => "there is no map of this index",
            Refusal::NoMemory => "there is not enough memory for the program",
        };
        write!(f, "instruction {} ({:#018x}): {reason}", self.pc, self.word)
    }
}

impl core::error::Error for LoadError {}

impl Program {
    /// Checks a program that may use maps 0 to `maps - 1`, the helpers for them, and those that `helpers`
    /// knows.
    ///
    /// # Errors
    /// The first instruction that is refused, and why.
    pub fn load<H: Helpers>(insns: &[Insn], maps: usize, helpers: &H) -> Result<Self, LoadError> {
        let last = insns.last().copied().unwrap_or_default();
        let fail = |pc, insn: Insn, reason| LoadError { pc, word: insn.word(), reason };
        if insns.is_empty() || insns.len() > MAX_INSNS {
            return Err(fail(insns.len(), Insn::default(), Refusal::Length));
        }
        let mut steps = Vec::new();
        steps.try_reserve_exact(insns.len()).map_err(|_| fail(0, last, Refusal::NoMemory))?;
        let mut rest = insns;
        while let [insn, behind @ ..] = rest {
            let pc = steps.len();
            let fail = |reason| fail(pc, *insn, reason);
            rest = behind;
            if insn.opcode == LD_IMM64 {
                let [second, behind @ ..] = behind else { return Err(fail(Refusal::HalfWide)) };
                steps.push(load_wide(*insn, *second, maps).map_err(fail)?);
                steps.push(Step { op: Op::Hole, dst: 0, src: 0, is_imm: true, at: 0, imm: 0 });
                rest = behind;
            } else {
                steps.push(check(*insn, pc, insns.len(), helpers).map_err(fail)?);
            }
        }
        let is_hole = |step: &Step| steps.get(step.at as usize).is_none_or(|target| target.op == Op::Hole);
        if let Some(pc) = steps.iter().position(|step| is_jump(step.op) && is_hole(step)) {
            return Err(fail(pc, insns[pc], Refusal::JumpIntoWide));
        }
        if !steps.last().is_some_and(|step| matches!(step.op, Op::Exit | Op::Ja)) {
            return Err(fail(insns.len() - 1, last, Refusal::FallsOff));
        }
        join_returns(&mut steps);
        let uses_stack = insns.iter().any(|insn| insn.src == 10 || insn.dst == 10);
        Ok(Self { steps, uses_stack })
    }

    /// As [`Program::load`], of instructions as they lie in memory.
    ///
    /// # Errors
    /// The first instruction that is refused, and why.
    pub fn from_bytes<H: Helpers>(bytes: &[u8], maps: usize, helpers: &H) -> Result<Self, LoadError> {
        let (whole, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(LoadError { pc: whole.len(), word: 0, reason: Refusal::Partial });
        }
        let insns: Vec<_> = whole.iter().map(|bytes| Insn::from_bytes(*bytes)).collect();
        Self::load(&insns, maps, helpers)
    }
}

/// Makes one step of a number that is returned and the EXIT behind it, which is how most programs end.
fn join_returns(steps: &mut [Step]) {
    let mut rest = steps;
    while let [step, behind @ ..] = rest {
        let is_result = step.op == Op::Mov64 && step.is_imm && step.dst == 0;
        if is_result && behind.first().is_some_and(|next| next.op == Op::Exit) {
            step.op = Op::Return;
        }
        rest = behind;
    }
}

/// Sections 3.2 and 5.4.
const LD_IMM64: u8 = class::LD | mode::IMM | size::DW;

/// LD_IMM64, both halves.
fn load_wide(insn: Insn, second: Insn, maps: usize) -> Result<Step, Refusal> {
    if (Insn { imm: 0, ..second }) != Insn::default() {
        return Err(Refusal::HalfWide);
    }
    writable(insn.dst)?;
    let map = || u64::try_from(insn.imm).ok().filter(|&index| index < maps as u64).ok_or(Refusal::Map);
    let imm = match insn.src {
        _ if insn.offset != 0 => return Err(Refusal::Unused),
        wide::NUMBER => u64::from(second.imm as u32) << 32 | u64::from(insn.imm as u32),
        wide::MAP if second.imm != 0 => return Err(Refusal::HalfWide),
        wide::MAP => map()?,
        wide::MAP_VALUE => value_address(map()?, u64::from(second.imm as u32)),
        _ => return Err(Refusal::Unknown),
    };
    Ok(Step { op: Op::Wide, dst: insn.dst, src: 0, is_imm: true, at: 0, imm })
}

/// Any instruction but LD_IMM64, at its index in a program of so many.
fn check<H: Helpers>(insn: Insn, pc: usize, len: usize, helpers: &H) -> Result<Step, Refusal> {
    if insn.dst > 10 || insn.src > 10 {
        return Err(Refusal::Register);
    }
    match insn.opcode & class::MASK {
        class::ALU | class::ALU64 => arithmetic(insn),
        class::JMP | class::JMP32 => jump(insn, pc, len, helpers),
        class::LD if matches!(insn.opcode & mode::MASK, mode::ABS | mode::IND) => Err(Refusal::Deprecated),
        class::LD => Err(Refusal::Unknown),
        _ => memory(insn),
    }
}

fn writable(register: u8) -> Result<(), Refusal> {
    match register {
        0..=9 => Ok(()),
        10 => Err(Refusal::FramePointer),
        _ => Err(Refusal::Register),
    }
}

/// The step of an instruction whose operand the bit X chooses; the other operand has to be zero.
fn operand(insn: Insn, op: Op, at: u32) -> Result<Step, Refusal> {
    let is_imm = insn.opcode & X == 0;
    if if is_imm { insn.src != 0 } else { insn.imm != 0 } {
        return Err(Refusal::Unused);
    }
    Ok(Step { op, dst: insn.dst, src: insn.src, is_imm, at, imm: i64::from(insn.imm) as u64 })
}

/// Sections 4.1 and 4.2.
fn arithmetic(insn: Insn) -> Result<Step, Refusal> {
    writable(insn.dst)?;
    let code = insn.opcode & 0xf0;
    if code == alu::END {
        return byte_swap(insn);
    }
    let (is_wide, is_register) = (insn.opcode & class::MASK == class::ALU64, insn.opcode & X != 0);
    let (op64, op32) = match (code, insn.offset) {
        (alu::ADD, 0) => (Op::Add64, Op::Add32),
        (alu::SUB, 0) => (Op::Sub64, Op::Sub32),
        (alu::MUL, 0) => (Op::Mul64, Op::Mul32),
        (alu::DIV, 0) => (Op::Div64, Op::Div32),
        (alu::DIV, 1) => (Op::Sdiv64, Op::Sdiv32),
        (alu::OR, 0) => (Op::Or64, Op::Or32),
        (alu::AND, 0) => (Op::And64, Op::And32),
        (alu::LSH, 0) => (Op::Lsh64, Op::Lsh32),
        (alu::RSH, 0) => (Op::Rsh64, Op::Rsh32),
        (alu::NEG, 0) if is_register => return Err(Refusal::Unknown),
        (alu::NEG, 0) if insn.imm != 0 => return Err(Refusal::Unused),
        (alu::NEG, 0) => (Op::Neg64, Op::Neg32),
        (alu::MOD, 0) => (Op::Mod64, Op::Mod32),
        (alu::MOD, 1) => (Op::Smod64, Op::Smod32),
        (alu::XOR, 0) => (Op::Xor64, Op::Xor32),
        (alu::MOV, 0) => (Op::Mov64, Op::Mov32),
        (alu::MOV, 8) if is_register => (Op::Sx8, Op::Sx8To32),
        (alu::MOV, 16) if is_register => (Op::Sx16, Op::Sx16To32),
        (alu::MOV, 32) if is_register && is_wide => (Op::Sx32, Op::Hole),
        (alu::ARSH, 0) => (Op::Arsh64, Op::Arsh32),
        (alu::MOV | alu::DIV | alu::MOD, _) => return Err(Refusal::Unknown),
        (0..=alu::END, _) => return Err(Refusal::Unused),
        _ => return Err(Refusal::Unknown),
    };
    operand(insn, if is_wide { op64 } else { op32 }, 0)
}

/// Section 4.2: the bit X chooses the byte order in class ALU; in class ALU64 the swap is unconditional.
fn byte_swap(insn: Insn) -> Result<Step, Refusal> {
    const LE: u8 = class::ALU | alu::END;
    const BE: u8 = class::ALU | alu::END | X;
    const SWAP: u8 = class::ALU64 | alu::END;
    let op = match (insn.opcode, insn.imm) {
        _ if insn.src != 0 || insn.offset != 0 => return Err(Refusal::Unused),
        (LE, 16) => Op::Le16,
        (LE, 32) => Op::Le32,
        (LE, 64) => Op::Le64,
        (BE, 16) => Op::Be16,
        (BE, 32) => Op::Be32,
        (BE, 64) => Op::Be64,
        (SWAP, 16) => Op::Swap16,
        (SWAP, 32) => Op::Swap32,
        (SWAP, 64) => Op::Swap64,
        _ => return Err(Refusal::Unknown),
    };
    Ok(Step { op, dst: insn.dst, src: 0, is_imm: true, at: 0, imm: 0 })
}

/// Section 4.3.
fn jump<H: Helpers>(insn: Insn, pc: usize, len: usize, helpers: &H) -> Result<Step, Refusal> {
    const JA: u8 = class::JMP | jmp::JA;
    const GOTOL: u8 = class::JMP32 | jmp::JA;
    const CALL: u8 = class::JMP | jmp::CALL;
    const EXIT: u8 = class::JMP | jmp::EXIT;
    let plain = |op| Step { op, dst: 0, src: 0, is_imm: true, at: 0, imm: i64::from(insn.imm) as u64 };
    let target = |distance: i32| {
        let target = pc as i64 + 1 + i64::from(distance);
        u32::try_from(target).ok().filter(|&target| (target as usize) < len).ok_or(Refusal::JumpOutside)
    };
    let unused = |are_zero: bool| if are_zero { Ok(()) } else { Err(Refusal::Unused) };
    match insn.opcode {
        JA => {
            unused(insn.dst == 0 && insn.src == 0 && insn.imm == 0)?;
            return Ok(Step { at: target(insn.offset.into())?, ..plain(Op::Ja) });
        }
        GOTOL => {
            unused(insn.dst == 0 && insn.src == 0 && insn.offset == 0)?;
            return Ok(Step { at: target(insn.imm)?, ..plain(Op::Ja) });
        }
        CALL => {
            // Section 4.3: 1 is a function of the program, 2 a helper by its type's number.
            let is_known = MAP_HELPERS.contains(&insn.imm) || helpers.is_known(insn.imm);
            if insn.src != 0 || !is_known {
                return Err(Refusal::Helper);
            }
            unused(insn.dst == 0 && insn.offset == 0)?;
            return Ok(plain(Op::Call));
        }
        EXIT => {
            unused((Insn { opcode: 0, ..insn }) == Insn::default())?;
            return Ok(plain(Op::Exit));
        }
        _ => {}
    }
    let (op64, op32) = match insn.opcode & 0xf0 {
        jmp::JEQ => (Op::Jeq64, Op::Jeq32),
        jmp::JGT => (Op::Jgt64, Op::Jgt32),
        jmp::JGE => (Op::Jge64, Op::Jge32),
        jmp::JSET => (Op::Jset64, Op::Jset32),
        jmp::JNE => (Op::Jne64, Op::Jne32),
        jmp::JSGT => (Op::Jsgt64, Op::Jsgt32),
        jmp::JSGE => (Op::Jsge64, Op::Jsge32),
        jmp::JLT => (Op::Jlt64, Op::Jlt32),
        jmp::JLE => (Op::Jle64, Op::Jle32),
        jmp::JSLT => (Op::Jslt64, Op::Jslt32),
        jmp::JSLE => (Op::Jsle64, Op::Jsle32),
        _ => return Err(Refusal::Unknown),
    };
    let op = if insn.opcode & class::MASK == class::JMP { op64 } else { op32 };
    operand(insn, op, target(insn.offset.into())?)
}

fn is_jump(op: Op) -> bool {
    (Op::Ja as u8..=Op::Jsle32 as u8).contains(&(op as u8))
}

/// Sections 5.1 to 5.3.
fn memory(insn: Insn) -> Result<Step, Refusal> {
    let class = insn.opcode & class::MASK;
    let op = match (class, insn.opcode & mode::MASK, insn.opcode & size::MASK) {
        (class::LDX, mode::MEM, size::B) => Op::Load8,
        (class::LDX, mode::MEM, size::H) => Op::Load16,
        (class::LDX, mode::MEM, size::W) => Op::Load32,
        (class::LDX, mode::MEM, size::DW) => Op::Load64,
        (class::LDX, mode::MEMSX, size::B) => Op::LoadSx8,
        (class::LDX, mode::MEMSX, size::H) => Op::LoadSx16,
        (class::LDX, mode::MEMSX, size::W) => Op::LoadSx32,
        (class::ST | class::STX, mode::MEM, size::B) => Op::Store8,
        (class::ST | class::STX, mode::MEM, size::H) => Op::Store16,
        (class::ST | class::STX, mode::MEM, size::W) => Op::Store32,
        (class::ST | class::STX, mode::MEM, size::DW) => Op::Store64,
        (class::STX, mode::ATOMIC, size::W) => Op::Atomic32,
        (class::STX, mode::ATOMIC, size::DW) => Op::Atomic64,
        _ => return Err(Refusal::Unknown),
    };
    if matches!(op, Op::Atomic32 | Op::Atomic64) {
        match insn.imm & !atomic::FETCH {
            atomic::ADD | atomic::OR | atomic::AND | atomic::XOR => {}
            _ if matches!(insn.imm, atomic::XCHG | atomic::CMPXCHG) => {}
            _ => return Err(Refusal::Unknown),
        }
        if insn.imm & atomic::FETCH != 0 && insn.imm != atomic::CMPXCHG {
            writable(insn.src)?;
        }
    } else if class == class::LDX {
        writable(insn.dst)?;
    }
    if if class == class::ST {
        insn.src != 0
    } else {
        insn.imm != 0 && insn.opcode & mode::MASK != mode::ATOMIC
    } {
        return Err(Refusal::Unused);
    }
    let at = i32::from(insn.offset) as u32;
    let imm = i64::from(insn.imm) as u64;
    Ok(Step { op, dst: insn.dst, src: insn.src, is_imm: class == class::ST, at, imm })
}
