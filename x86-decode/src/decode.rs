//! From bytes to a plan or a refusal, one instruction class after the other.
//!
//! Decided on opcodes, not on a decoder's mnemonics. Everything that neither reads nor changes the
//! instruction pointer, the trap and interrupt flags or the interrupt shadow runs unchanged in a slot.

use crate::insn::{Insn, Map, ModRm, Prefixes, REX_B, REX_R, REX_X};
use crate::mode::Mode;
use crate::plan::{
    AddressSize, Condition, Effect, LoopKind, MemoryOperand, Plan, Source, StackEffect, Width,
};
use crate::{MAX_INSN_LEN, length, refusal};
use probe_core::arch::{Decoded, Method, Site};
use probe_core::error::Refusal;

/// Decides how the instruction at a place is executed, or why it cannot be probed.
///
/// # Errors
/// One of the constants in [`crate::refusal`].
pub fn decode<M: Mode>(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
    // Room for what follows an STI.
    let mut text = [0; MAX_INSN_LEN];
    let readable = site.text.read(site.at, &mut text).min(MAX_INSN_LEN);
    let text = text.get(..readable).unwrap_or(&text);
    let ends_signal_return = signal_returns::<M>().iter().any(|bytes| {
        let (before, call) = bytes.split_at(bytes.len() - 2);
        let mut found = [0; 7];
        let found = &mut found[..before.len()];
        text.starts_with(call)
            && site.text.read(site.at.wrapping_offset(-(before.len() as isize)), found) == before.len()
            && found == before
    });
    if ends_signal_return { Err(refusal::SIGNAL_RETURN) } else { decode_bytes::<M>(text) }
}

/// [`decode`] on bytes: the instruction, and what follows it.
///
/// # Errors
/// One of the constants in [`crate::refusal`].
pub fn decode_bytes<M: Mode>(text: &[u8]) -> Result<Decoded<Plan>, Refusal> {
    if signal_returns::<M>().iter().any(|bytes| text.starts_with(bytes)) {
        return Err(refusal::SIGNAL_RETURN);
    }
    let Some(insn) = length::valid::<M>(text) else {
        return Err(why_invalid::<M>(text));
    };
    let after = text.get(usize::from(insn.len_bytes)..).unwrap_or(&[]);
    let effect = match insn.map {
        Map::Primary => primary::<M>(&insn, after)?,
        Map::Escape0F => escape_0f::<M>(&insn)?,
        _ => None,
    };
    let effect = match effect {
        // Undefined: none of them writes memory through ModRM.
        Some(_) if insn.has(Prefixes::LOCK) => return Err(refusal::UNDECODABLE),
        Some(effect) => effect,
        None => out_of_line::<M>(&insn)?,
    };
    let method = match effect {
        Effect::Copy | Effect::IpRelative { .. } | Effect::Ip32Relative { .. } => Method::Boost,
        Effect::SystemCall | Effect::SegmentJump { .. } | Effect::SegmentCall { .. } => Method::Step,
        _ => Method::Simulate,
    };
    let len_bytes = insn.len_bytes;
    Ok(Decoded { plan: Plan { effect, len_bytes }, len_bytes, method })
}

/// The bytes by which unwinders know Linux's way out of a signal handler at an address that no table covers:
/// the system call (its last two bytes) and the instruction before it.
fn signal_returns<M: Mode>() -> &'static [&'static [u8]] {
    if M::IS_LONG {
        &[b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05"]
    } else {
        &[b"\x58\xb8\x77\0\0\0\xcd\x80", b"\xb8\x77\0\0\0\xcd\x80", b"\xb8\xad\0\0\0\xcd\x80"]
    }
}

/// A more telling reason than "undecodable", where there is one.
fn why_invalid<M: Mode>(text: &[u8]) -> Refusal {
    let opcode_at =
        text.iter().take_while(|byte| matches!(byte, 0x66 | 0x67 | 0x64 | 0x65 | 0xf2 | 0xf3)).count();
    match text.get(opcode_at..).unwrap_or(&[]) {
        [0xd5, ..] if M::IS_LONG => refusal::APX,
        [0x62, payload, ..] if M::IS_LONG && payload & 7 == 4 => refusal::APX,
        [0xe8 | 0xe9, ..] | [0x0f, 0x80..=0x8f, ..]
            if text.iter().take(opcode_at).any(|byte| *byte == 0x66) =>
        {
            refusal::NARROW_BRANCH
        }
        [0xc7, 0xf8, ..] => refusal::XBEGIN,
        _ => refusal::UNDECODABLE,
    }
}

/// Instructions that run in a slot.
fn out_of_line<M: Mode>(insn: &Insn) -> Result<Effect, Refusal> {
    if !insn.is_ip_relative::<M>() {
        return Ok(Effect::Copy);
    }
    if !insn.has(Prefixes::ADDRESS_SIZE) {
        return Ok(Effect::IpRelative { displacement_at: insn.modrm_at + 1 });
    }
    if usize::from(insn.len_bytes) >= MAX_INSN_LEN {
        return Err(refusal::TOO_LONG);
    }
    Ok(Effect::Ip32Relative { modrm_at: insn.modrm_at })
}

/// One-byte opcodes that are simulated or refused; `None` for those that run in a slot.
fn primary<M: Mode>(insn: &Insn, after: &[u8]) -> Result<Option<Effect>, Refusal> {
    let effect = match insn.opcode {
        0x17 => return Err(refusal::STACK_SEGMENT),
        0x8e if insn.modrm.is_some_and(|modrm| modrm.reg() == 2) => return Err(refusal::STACK_SEGMENT),
        0x9a | 0xca | 0xcb | 0xea => return Err(refusal::FAR_TRANSFER),
        0xcc => return Err(refusal::BREAKPOINT),
        0xcd => return interrupt(insn),
        0xce => return Err(refusal::INTERRUPT),
        0xcf => return Err(refusal::IRET),
        0xf1 => return Err(refusal::INT1),
        0xf4 => return Err(refusal::HLT),
        0xc7 if insn.modrm == Some(ModRm(0xf8)) => return Err(refusal::XBEGIN),

        0x70..=0x7f => {
            let condition = Condition(insn.opcode & 15);
            near(insn, Effect::Branch { condition, displacement: insn.trailing_i32(1) })?
        }
        0xe0..=0xe3 => counted_branch::<M>(insn)?,
        0xe8 => near(insn, Effect::Call { displacement: insn.trailing_i32(4) })?,
        0xe9 => near(insn, Effect::Jump { displacement: insn.trailing_i32(4) })?,
        0xeb => near(insn, Effect::Jump { displacement: insn.trailing_i32(1) })?,
        0xc2 => near(insn, Effect::Return { drops: insn.trailing_i32(2) as u16 })?,
        0xc3 => near(insn, Effect::Return { drops: 0 })?,
        0xff => return group5::<M>(insn),

        0x9c => Effect::Stack(StackEffect::PushFlags(stack_width::<M>(insn))),
        0x9d => Effect::Stack(StackEffect::PopFlags(stack_width::<M>(insn))),
        0xfa => Effect::Stack(StackEffect::DisableInterrupts),
        0xfb if needs_sti_shadow(after) => return Err(refusal::STI_SHADOW),
        0xfb => Effect::Stack(StackEffect::EnableInterrupts),
        _ => return Ok(common::<M>(insn)),
    };
    Ok(Some(effect))
}

/// Common instructions that need no slot: what function entries and epilogues are made of.
fn common<M: Mode>(insn: &Insn) -> Option<Effect> {
    let plain_stack = !insn.has(Prefixes::OPERAND_SIZE);
    let low = insn.opcode & 7 | (insn.rex & REX_B) << 3;
    let width = match (insn.is_wide(), insn.has(Prefixes::OPERAND_SIZE)) {
        (true, _) => Width::Bits64,
        (false, true) => Width::Bits16,
        (false, false) => Width::Bits32,
    };
    match insn.opcode {
        0x50..=0x57 if plain_stack => Some(Effect::Stack(StackEffect::Push(low))),
        0x58..=0x5f if plain_stack => Some(Effect::Stack(StackEffect::Pop(low))),
        0x68 if plain_stack => Some(Effect::Stack(StackEffect::PushImmediate(insn.trailing_i32(4)))),
        0x6a if plain_stack => Some(Effect::Stack(StackEffect::PushImmediate(insn.trailing_i32(1)))),
        0xc9 if plain_stack => Some(Effect::Stack(StackEffect::Leave)),
        // F3 90 is PAUSE, REX.B 90 is XCHG.
        0x90 if low == 0 && !insn.has(Prefixes::REP) => Some(Effect::Nop),
        0xb8..=0xbf if width == Width::Bits32 => {
            Some(Effect::MoveImmediate { to: low, width, value: insn.trailing_i32(4) })
        }
        0x89 | 0x8b | 0x8d | 0xc7 if width != Width::Bits16 => moves::<M>(insn, width),
        _ => None,
    }
}

/// MOV between registers, MOV of an immediate to a register, LEA.
fn moves<M: Mode>(insn: &Insn, width: Width) -> Option<Effect> {
    let modrm = insn.modrm?;
    let reg = modrm.reg() | (insn.rex & REX_R) << 1;
    let rm = modrm.rm() | (insn.rex & REX_B) << 3;
    match (insn.opcode, modrm.is_register()) {
        (0x89, true) => Some(Effect::MoveRegister { to: rm, from: reg, width }),
        (0x8b, true) => Some(Effect::MoveRegister { to: reg, from: rm, width }),
        (0xc7, true) if modrm.reg() == 0 => {
            Some(Effect::MoveImmediate { to: rm, width, value: insn.trailing_i32(4) })
        }
        (0x8d, false) => {
            Some(Effect::LoadAddress { to: reg, width, operand: memory_operand::<M>(insn, modrm) })
        }
        _ => None,
    }
}

/// Two-byte opcodes that are simulated or refused; `None` for those that run in a slot.
fn escape_0f<M: Mode>(insn: &Insn) -> Result<Option<Effect>, Refusal> {
    match insn.opcode {
        0x01 => system_group(insn).map(|()| None),
        0x05 if M::IS_LONG => Ok(Some(Effect::SystemCall)),
        // Outside 64-bit mode (AMD only) the return address goes to ECX as well, with other rules for flags.
        0x05 | 0x34 => Err(refusal::SYSENTER),
        0x07 | 0x35 | 0xaa => Err(refusal::PRIVILEGED_RETURN),
        0x0b | 0xb9 | 0xff => Err(refusal::UNDEFINED),
        0x37 => Err(refusal::WORLD_SWITCH),
        0xb2 => Err(refusal::STACK_SEGMENT),
        0x80..=0x8f => {
            let condition = Condition(insn.opcode & 15);
            near(insn, Effect::Branch { condition, displacement: insn.trailing_i32(4) }).map(Some)
        }
        // NOP r/m: no access; ENDBR is among the hints.
        0x1f if insn.modrm.is_some_and(|modrm| modrm.reg() == 0) => Ok(Some(Effect::Nop)),
        0x1e if insn.has(Prefixes::REP) && matches!(insn.modrm, Some(ModRm(0xfa | 0xfb))) => {
            Ok(Some(Effect::Nop))
        }
        _ => Ok(None),
    }
}

/// Register forms of group 0F 01 that leave the slot or change what the trap handler stands on.
fn system_group(insn: &Insn) -> Result<(), Refusal> {
    let (rep, repne) = (insn.has(Prefixes::REP), insn.has(Prefixes::REPNE));
    match insn.modrm {
        Some(ModRm(0xc0 | 0xc2 | 0xc3 | 0xcf | 0xd7 | 0xd8 | 0xde)) => Err(refusal::WORLD_SWITCH),
        Some(ModRm(0xca)) if rep || repne => Err(refusal::PRIVILEGED_RETURN),
        Some(ModRm(0xec)) if rep => Err(refusal::PRIVILEGED_RETURN),
        Some(ModRm(0xcd)) if insn.has(Prefixes::OPERAND_SIZE) => Err(refusal::PRIVILEGED_RETURN),
        Some(ModRm(0xf8)) => Err(refusal::SWAPGS),
        _ => Ok(()),
    }
}

/// INT n: only the system call of 32-bit Linux.
fn interrupt(insn: &Insn) -> Result<Option<Effect>, Refusal> {
    match insn.trailing_i32(1) as u8 {
        3 => Err(refusal::BREAKPOINT),
        0x80 => Ok(Some(Effect::SystemCall)),
        _ => Err(refusal::INTERRUPT),
    }
}

/// CALL and JMP through registers and memory.
fn group5<M: Mode>(insn: &Insn) -> Result<Option<Effect>, Refusal> {
    let Some(modrm) = insn.modrm else { return Err(refusal::UNDECODABLE) };
    let is_call = match modrm.reg() {
        2 => true,
        4 => false,
        3 | 5 => return Err(refusal::FAR_TRANSFER),
        _ => return Ok(None),
    };
    let opcode_at = insn.modrm_at.saturating_sub(1);
    let effect = if !modrm.is_register() && insn.has(Prefixes::FS_OR_GS) {
        match is_call {
            _ if insn.is_ip_relative::<M>() => return Err(refusal::SEGMENT_IP_RELATIVE),
            true => {
                Effect::SegmentCall { opcode_at, borrowed: unused_register(memory_operand::<M>(insn, modrm)) }
            }
            false => Effect::SegmentJump { opcode_at },
        }
    } else {
        let source = if modrm.is_register() {
            Source::Register(modrm.rm() | (insn.rex & REX_B) << 3)
        } else {
            Source::Memory(memory_operand::<M>(insn, modrm))
        };
        if is_call { Effect::CallIndirect(source) } else { Effect::JumpIndirect(source) }
    };
    near(insn, effect).map(Some)
}

/// A general register (AX, CX or DX) that an address does not use.
fn unused_register(operand: MemoryOperand) -> u8 {
    (0..3).find(|register| *register != operand.base && *register != operand.index).unwrap_or(0)
}

/// Refuses a near branch with an operand-size prefix that REX.W does not void.
fn near(insn: &Insn, effect: Effect) -> Result<Effect, Refusal> {
    if insn.has(Prefixes::OPERAND_SIZE) && !insn.is_wide() { Err(refusal::NARROW_BRANCH) } else { Ok(effect) }
}

fn counted_branch<M: Mode>(insn: &Insn) -> Result<Effect, Refusal> {
    // AMD's take the condition from the prefix (measured on a Zen 4), Intel's ignore that.
    if matches!(insn.opcode, 0xe0 | 0xe1) && (insn.has(Prefixes::REP) || insn.has(Prefixes::REPNE)) {
        return Err(refusal::REPEATED_LOOP);
    }
    let kind = match insn.opcode {
        0xe0 => LoopKind::LoopNotEqual,
        0xe1 => LoopKind::LoopEqual,
        0xe2 => LoopKind::Loop,
        _ => LoopKind::JumpIfZero,
    };
    let displacement = insn.trailing_i32(1) as i8;
    near(insn, Effect::Loop { kind, counter: address_size::<M>(insn), displacement })
}

/// Whether STI's shadow is there for the next instruction: HLT, IRET, MWAIT, SYSEXIT.
fn needs_sti_shadow(after: &[u8]) -> bool {
    matches!(
        after,
        [0xf4 | 0xcf, ..]
            | [0x48, 0xcf, ..]
            | [0x0f, 0x01, 0xc9, ..]
            | [0x0f, 0x35, ..]
            | [0x48, 0x0f, 0x35, ..]
    )
}

fn address_size<M: Mode>(insn: &Insn) -> AddressSize {
    match (M::IS_LONG, insn.has(Prefixes::ADDRESS_SIZE)) {
        (true, false) => AddressSize::Bits64,
        (true, true) | (false, false) => AddressSize::Bits32,
        (false, true) => AddressSize::Bits16,
    }
}

/// The operand size of PUSHF and POPF.
fn stack_width<M: Mode>(insn: &Insn) -> Width {
    match (M::IS_LONG, insn.has(Prefixes::OPERAND_SIZE) && !insn.is_wide()) {
        (_, true) => Width::Bits16,
        (true, false) => Width::Bits64,
        (false, false) => Width::Bits32,
    }
}

/// The memory operand that the ModRM byte, SIB and displacement describe.
fn memory_operand<M: Mode>(insn: &Insn, modrm: ModRm) -> MemoryOperand {
    let size = address_size::<M>(insn);
    if size == AddressSize::Bits16 {
        return memory_operand16(insn, modrm);
    }
    const NONE: u8 = MemoryOperand::NO_REGISTER;
    let (mut base, mut index, mut scale) = (modrm.rm(), NONE, 0);
    let mut displacement_at = insn.modrm_at + 1;
    if base == 4 {
        let sib = insn.byte(usize::from(displacement_at)).unwrap_or(0);
        displacement_at += 1;
        base = sib & 7;
        scale = sib >> 6;
        index = sib >> 3 & 7 | (insn.rex & REX_X) << 2;
        if index == 4 {
            index = NONE;
        }
    }
    let displacement_len = match modrm.mode() {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    base = match (modrm.mode(), base) {
        (0, 5) if insn.is_ip_relative::<M>() => MemoryOperand::NEXT_IP,
        (0, 5) => NONE,
        _ => base | (insn.rex & REX_B) << 3,
    };
    let displacement =
        if displacement_len == 0 { 0 } else { insn.signed_at(displacement_at, displacement_len) };
    MemoryOperand { base, index, size, scale, displacement }
}

/// The 16-bit forms. Source: SDM volume 2, table 2-1.
fn memory_operand16(insn: &Insn, modrm: ModRm) -> MemoryOperand {
    const NONE: u8 = MemoryOperand::NO_REGISTER;
    const BX: u8 = 3;
    const BP: u8 = 5;
    const SI: u8 = 6;
    const DI: u8 = 7;
    let (base, index) = match (modrm.rm(), modrm.mode()) {
        (0, _) => (BX, SI),
        (1, _) => (BX, DI),
        (2, _) => (BP, SI),
        (3, _) => (BP, DI),
        (4, _) => (SI, NONE),
        (5, _) => (DI, NONE),
        (6, 0) => (NONE, NONE),
        (6, _) => (BP, NONE),
        _ => (BX, NONE),
    };
    let displacement = match (modrm.mode(), modrm.rm()) {
        (1, _) => insn.signed_at(insn.modrm_at + 1, 1),
        (0, 6) | (2, _) => insn.signed_at(insn.modrm_at + 1, 2),
        _ => 0,
    };
    MemoryOperand { base, index, size: AddressSize::Bits16, scale: 0, displacement }
}
