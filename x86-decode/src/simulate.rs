//! The effect of a simulated instruction on registers and stack.
//!
//! Exact as on hardware, also where Linux's emulation is not: LOOP counts before it tests and, with a 32-bit
//! counter in 64-bit mode, clears the upper half of RCX; RET imm16 drops its arguments; CALL reads its
//! target before it pushes; 16-bit PUSHF and POPF move two bytes.
//!
//! What the processor would answer with #GP (a target that is not canonical, CLI and STI without the
//! privilege) is a fault at address 0, as the system call interface shows a #GP to a process. Segments start
//! at 0. The shadow stack of CET is not kept: a host must not probe tasks that run with one.

use crate::mode::Mode;
use crate::plan::{Condition, Effect, LoopKind, MemoryOperand, Plan, Source, StackEffect, Width};
use crate::registers::{FlagBits, Registers};
use probe_core::CodeAddr;
use probe_core::arch::{Access, MemFault, Memory};

/// The encodings of the registers that instructions use implicitly.
const CX: u8 = 1;
const SP: u8 = 4;
const BP: u8 = 5;

/// Executes the effect of a simulated instruction on `regs`, whose program counter is `place`.
///
/// A plan that runs in a slot counts as no operation here; the core does not ask for it.
///
/// # Errors
/// The fault that the instruction would have raised. Then neither registers nor memory have changed.
#[inline]
pub fn simulate<R: Registers, M: Memory>(
    plan: &Plan,
    place: CodeAddr,
    regs: &mut R,
    memory: &M,
) -> Result<(), MemFault> {
    let next = narrow::<R>((place.as_usize() as u64).wrapping_add(u64::from(plan.len_bytes)));
    // By itself, because it needs so much less than the others.
    if let Effect::Jump { displacement } = plan.effect {
        regs.set_pc(CodeAddr::new(relative::<R>(next, displacement)? as usize));
        return Ok(());
    }
    simulate_other(plan, next, regs, memory)
}

/// As [`simulate`], for all but direct jumps; `next` is the address of the next instruction.
#[inline(never)]
fn simulate_other<R: Registers, M: Memory>(
    plan: &Plan,
    next: u64,
    regs: &mut R,
    memory: &M,
) -> Result<(), MemFault> {
    let target = match plan.effect {
        Effect::Branch { condition, displacement } if condition.holds(regs.flags()) => {
            relative::<R>(next, displacement)?
        }
        Effect::Loop { kind, counter, displacement } => {
            let target = relative::<R>(next, i32::from(displacement));
            let count =
                regs.general(CX).wrapping_sub(u64::from(kind != LoopKind::JumpIfZero)) & counter.mask();
            let is_taken = is_loop_taken(kind, count, regs.flags());
            let target = if is_taken { target? } else { next };
            if kind != LoopKind::JumpIfZero {
                write_counter(regs, counter.mask(), count);
            }
            target
        }
        Effect::Call { displacement } => {
            let target = relative::<R>(next, displacement)?;
            push(regs, memory, next)?;
            target
        }
        Effect::JumpIndirect(source) => canonical::<R>(read_source(source, next, regs, memory)?)?,
        Effect::CallIndirect(source) => {
            // The target is read first: it may be addressed through, or be, the stack pointer.
            let target = canonical::<R>(read_source(source, next, regs, memory)?)?;
            push(regs, memory, next)?;
            target
        }
        Effect::Return { drops } => {
            let stack = regs.general(SP);
            let target = canonical::<R>(read_word::<R, M>(memory, stack)?)?;
            set_stack(regs, stack.wrapping_add(R::Mode::WORD as u64 + u64::from(drops)));
            target
        }
        Effect::Stack(effect) => {
            stack(effect, regs, memory)?;
            next
        }
        Effect::MoveRegister { to, from, width } => {
            write_general(regs, to, width, regs.general(from));
            next
        }
        Effect::MoveImmediate { to, width, value } => {
            write_general(regs, to, width, i64::from(value) as u64);
            next
        }
        Effect::LoadAddress { to, width, operand } => {
            let address = effective_address(operand, next, regs);
            write_general(regs, to, width, address);
            next
        }
        _ => next,
    };
    regs.set_pc(CodeAddr::new(target as usize));
    Ok(())
}

impl Condition {
    /// Whether a jump with this condition is taken. Source: SDM volume 2, appendix B.1.4.7.
    #[must_use]
    pub fn holds(self, flags: u64) -> bool {
        let has = |bit: u64| flags & bit != 0;
        let holds = match self.0 >> 1 {
            0 => has(FlagBits::OF),
            1 => has(FlagBits::CF),
            2 => has(FlagBits::ZF),
            3 => has(FlagBits::CF) || has(FlagBits::ZF),
            4 => has(FlagBits::SF),
            5 => has(FlagBits::PF),
            6 => has(FlagBits::SF) != has(FlagBits::OF),
            _ => has(FlagBits::ZF) || has(FlagBits::SF) != has(FlagBits::OF),
        };
        holds != (self.0 & 1 != 0)
    }
}

/// The linear address of a memory operand in a segment that starts at 0.
fn effective_address<R: Registers>(operand: MemoryOperand, next: u64, regs: &R) -> u64 {
    let base = match operand.base {
        MemoryOperand::NEXT_IP => next,
        // Numbers that are no register read as 0.
        number => regs.general(number),
    };
    let index = regs.general(operand.index) << operand.scale;
    base.wrapping_add(index).wrapping_add(i64::from(operand.displacement) as u64) & operand.size.mask()
}

fn read_source<R: Registers, M: Memory>(
    source: Source,
    next: u64,
    regs: &R,
    memory: &M,
) -> Result<u64, MemFault> {
    match source {
        Source::Register(number) => Ok(regs.general(number)),
        Source::Memory(operand) => read_word::<R, M>(memory, effective_address(operand, next, regs)),
    }
}

fn is_loop_taken(kind: LoopKind, count: u64, flags: u64) -> bool {
    let zero_flag = flags & FlagBits::ZF != 0;
    match kind {
        LoopKind::LoopNotEqual => count != 0 && !zero_flag,
        LoopKind::LoopEqual => count != 0 && zero_flag,
        LoopKind::Loop => count != 0,
        LoopKind::JumpIfZero => count == 0,
    }
}

/// Writes the counter: a 16-bit one leaves the rest of ECX alone, a 32-bit one clears the upper half of RCX.
fn write_counter<R: Registers>(regs: &mut R, mask: u64, count: u64) {
    let kept = if mask == 0xffff { regs.general(CX) & !mask } else { 0 };
    regs.set_general(CX, kept | count);
}

fn stack<R: Registers, M: Memory>(effect: StackEffect, regs: &mut R, memory: &M) -> Result<(), MemFault> {
    match effect {
        StackEffect::Push(number) => push(regs, memory, regs.general(number))?,
        StackEffect::PushImmediate(value) => push(regs, memory, i64::from(value) as u64)?,
        StackEffect::Pop(number) => {
            let at = regs.general(SP);
            let value = read_word::<R, M>(memory, at)?;
            set_stack(regs, at.wrapping_add(R::Mode::WORD as u64));
            // After the stack pointer: `pop sp` leaves what was popped.
            regs.set_general(number, value);
        }
        StackEffect::Leave => {
            let frame = regs.general(BP);
            let value = read_word::<R, M>(memory, frame)?;
            set_stack(regs, frame.wrapping_add(R::Mode::WORD as u64));
            regs.set_general(BP, value);
        }
        StackEffect::PushFlags(width) => {
            let image = regs.flags() & !(FlagBits::RF | FlagBits::VM);
            push_sized(regs, memory, image, width_bytes(width))?;
        }
        StackEffect::PopFlags(width) => pop_flags(width, regs, memory)?,
        StackEffect::DisableInterrupts => {
            require_io_privilege(regs)?;
            regs.set_flags(regs.flags() & !FlagBits::IF);
        }
        StackEffect::EnableInterrupts => {
            require_io_privilege(regs)?;
            regs.set_flags(regs.flags() | FlagBits::IF);
        }
    }
    Ok(())
}

/// POPF. What it may change depends on the privilege level. Source: SDM volume 2, POPF, table 4-16.
fn pop_flags<R: Registers, M: Memory>(width: Width, regs: &mut R, memory: &M) -> Result<(), MemFault> {
    let at = regs.general(SP);
    let bytes = width_bytes(width);
    let image = read_sized(memory, at, bytes)?;
    let old = regs.flags();
    let level = regs.code_segment() & 3;
    let mut writable = FlagBits::CF | FlagBits::PF | FlagBits::AF | FlagBits::ZF | FlagBits::SF;
    writable |= FlagBits::TF | FlagBits::DF | FlagBits::OF | FlagBits::NT;
    if width != Width::Bits16 {
        writable |= FlagBits::AC | FlagBits::ID;
    }
    if level == 0 {
        writable |= FlagBits::IOPL;
    }
    if level <= io_privilege_level(old) {
        writable |= FlagBits::IF;
    }
    set_stack(regs, at.wrapping_add(bytes as u64));
    regs.set_flags((old & !writable & !FlagBits::RF) | (image & writable));
    Ok(())
}

fn io_privilege_level(flags: u64) -> u64 {
    (flags & FlagBits::IOPL) >> 12
}

/// #GP unless the interrupted code may change the interrupt flag.
fn require_io_privilege<R: Registers>(regs: &R) -> Result<(), MemFault> {
    if regs.code_segment() & 3 <= io_privilege_level(regs.flags()) { Ok(()) } else { Err(GENERAL_PROTECTION) }
}

/// How a #GP is told: see the module's description.
const GENERAL_PROTECTION: MemFault = MemFault { addr: 0, access: Access::Read };

/// `address` unless jumping there raises #GP: in 64-bit mode bits 63 to 56 must be equal (a processor without
/// 57-bit addresses faults on some more, when the context is resumed).
fn canonical<R: Registers>(address: u64) -> Result<u64, MemFault> {
    let top = (address as i64) >> 56;
    if R::Mode::IS_LONG && top != 0 && top != -1 { Err(GENERAL_PROTECTION) } else { Ok(narrow::<R>(address)) }
}

fn relative<R: Registers>(next: u64, displacement: i32) -> Result<u64, MemFault> {
    canonical::<R>(narrow::<R>(next.wrapping_add(i64::from(displacement) as u64)))
}

/// Cuts a number to the mode's word.
fn narrow<R: Registers>(value: u64) -> u64 {
    if R::Mode::IS_LONG { value } else { value & 0xffff_ffff }
}

fn set_stack<R: Registers>(regs: &mut R, value: u64) {
    regs.set_general(SP, narrow::<R>(value));
}

/// Writes 32 bits (clearing the upper half) or 64.
fn write_general<R: Registers>(regs: &mut R, number: u8, width: Width, value: u64) {
    let value = match width {
        Width::Bits64 => value,
        Width::Bits32 => value & 0xffff_ffff,
        Width::Bits16 => regs.general(number) & !0xffff | value & 0xffff,
    };
    regs.set_general(number, value);
}

const fn width_bytes(width: Width) -> usize {
    match width {
        Width::Bits16 => 2,
        Width::Bits32 => 4,
        Width::Bits64 => 8,
    }
}

fn push<R: Registers, M: Memory>(regs: &mut R, memory: &M, value: u64) -> Result<(), MemFault> {
    push_sized(regs, memory, value, R::Mode::WORD)
}

fn push_sized<R: Registers, M: Memory>(
    regs: &mut R,
    memory: &M,
    value: u64,
    bytes: usize,
) -> Result<(), MemFault> {
    let at = narrow::<R>(regs.general(SP).wrapping_sub(bytes as u64));
    let image = value.to_le_bytes();
    memory.write(at as usize, image.get(..bytes).unwrap_or(&image))?;
    set_stack(regs, at);
    Ok(())
}

pub(crate) fn read_word<R: Registers, M: Memory>(memory: &M, at: u64) -> Result<u64, MemFault> {
    read_sized(memory, at, R::Mode::WORD)
}

fn read_sized<M: Memory>(memory: &M, at: u64, bytes: usize) -> Result<u64, MemFault> {
    let mut image = [0; 8];
    if let Some(out) = image.get_mut(..bytes) {
        memory.read(at as usize, out)?;
    }
    Ok(u64::from_le_bytes(image))
}
