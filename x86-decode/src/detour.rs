//! Detours: where the jump of an optimised probe leads, with copies of the instructions that the jump
//! displaces.
//!
//! The jump is `jmp rel32`, five bytes, often over several instructions. Only the first of them may be left
//! half overwritten for somebody who arrives there: a thread that was interrupted between two of them, a
//! return, an indirect jump that no analysis has seen. So the detour lies where the jump's displacement has
//! the byte `int3` at the start of every displaced instruction ([`target`]): whoever arrives traps, and goes
//! on in the detour's copy. Source of the idea: Chamith and others, "Instruction Punning", PLDI 2017.
//!
//! A detour is two words (the trampoline's address, the core's), a call of the trampoline, the copies, a jump
//! back. Behind the first copy the same two words and a second call may follow. The call is made below the
//! red zone (System V ABI AMD64 1.0, 3.2.2), and the trampoline raises the stack pointer again. In 32-bit
//! mode the core's word is pushed instead, and no words stand before the call.
//!
//! A processor predicts that a return leads behind the last call. So in a program the detour of a followed
//! call goes on to [the call right before the stub](crate::call::fill_followed_stubs), which leads to the
//! first copy. A call that is not followed after all skips that code ([`FOLLOW_LEN`], [`NOT_FOLLOWED_32`]).

use crate::decode::decode_bytes;
use crate::insn::{Insn, Prefixes};
use crate::mode::Mode;
use crate::plan::{Effect, MemoryOperand, Source};
use crate::slot::{Writer, ip_relative, ip32_relative};
use crate::{MAX_INSN_LEN, refusal};
use probe_core::CodeAddr;
use probe_core::arch::{DetourCalls, DetourLayout, Displaced, MAX_DISPLACED, Site};
use probe_core::error::Refusal;

/// The length of `jmp rel32`.
pub const JUMP_LEN: usize = 5;

/// The most bytes of a detour: twice two words, a call and the way to a stub, five copies, the jump back.
pub const DETOUR_LEN: usize = 255;

/// What a leaf function may keep below the stack pointer in 64-bit mode, in bytes.
pub const RED_ZONE_LEN: usize = 128;

/// How far before the return address of a detour's call its word lies, in 64-bit mode, in bytes.
pub const WORD_DISTANCE: usize = 8 + SKIP_RED_ZONE.len() + 6;

/// How far below the stack pointer a detour's call is made in 32-bit mode, in bytes: one word is pushed
/// before it, so that a word that a simulated instruction pushes does not overwrite the return address.
pub const PUSHED_LEN: usize = 4;

const INT3: u8 = 0xcc;
const JMP_REL32: u8 = 0xe9;
const JMP_INDIRECT: [u8; 2] = [0xff, 0x25];
/// `lea rsp, [rsp - 128]`
const SKIP_RED_ZONE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
/// `lea rsp, [rsp + 8]; jmp [rsp - 16]`: away from the return address, to the call before the stub.
const FOLLOW: [u8; FOLLOW_LEN] = [0x48, 0x8d, 0x64, 0x24, 0x08, 0xff, 0x64, 0x24, 0xf0];
/// The distance in 64-bit mode from behind the call of a followed function's detour to the copy, in bytes.
/// The code between uses two words below the stack pointer: the address of the call before the stub, and
/// below it the copy's.
pub const FOLLOW_LEN: usize = 9;
/// `lea esp, [esp - 4]`
const SKIP_WORD: [u8; 4] = [0x8d, 0x64, 0x24, 0xfc];
/// `push imm32`
const PUSH: u8 = 0x68;
/// `jmp [esp]`, to the call before the stub; twice `lea esp, [esp + 4]`.
const FOLLOW_32: [u8; FOLLOW_LEN_32] = [0xff, 0x24, 0x24, 0x8d, 0x64, 0x24, 0x04, 0x8d, 0x64, 0x24, 0x04];
/// The counterpart of [`PUSHED_LEN`] in the detours of followed functions: two words, which the trampoline
/// leaves on the stack. [`FOLLOWED_32`] drops the upper one, the call before the stub the lower one.
pub const WORDS_LEN: usize = 8;
/// As [`FOLLOW_LEN`], in 32-bit mode.
pub const FOLLOW_LEN_32: usize = 11;
/// Where the trampoline returns to, from behind the call, if the function is not followed after all: both
/// words are dropped.
pub const NOT_FOLLOWED_32: usize = 3;
/// Where the way to the first copy ends, from behind the call: the upper word is dropped.
pub const FOLLOWED_32: usize = 7;

/// Whether and how the flow goes on behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Next,
    Elsewhere,
}

/// Finds the instructions that a jump at a place displaces; see
/// [`Jumps::displace`](probe_core::arch::Jumps::displace).
///
/// # Errors
/// A refusal of [`crate::refusal`] that says why the place keeps its breakpoint.
pub fn displace<M: Mode>(site: &Site<'_>) -> Result<Displaced, Refusal> {
    let Some((_, end)) = site.function else { return Err(refusal::NO_FUNCTION) };
    let mut text = [0; JUMP_LEN + 2 * MAX_INSN_LEN];
    let readable = site.text.read(site.at, &mut text).min(text.len());
    let text = text.get(..readable).unwrap_or(&[]);
    let mut displaced = Displaced::default();
    let mut flow = After::Next;
    while usize::from(displaced.len_bytes) < JUMP_LEN {
        let offset = usize::from(displaced.len_bytes);
        let at = site.at.wrapping_add(offset);
        let rest = text.get(offset..).unwrap_or(&[]);
        if flow == After::Elsewhere || at >= end {
            // Nothing runs there; what stands there must be padding, up to where the next function may begin.
            let padding = padding_len::<M>(rest).ok_or(refusal::NEXT_FUNCTION)?;
            let next_function = end.as_usize().next_multiple_of(16);
            if at.as_usize() + padding > next_function {
                return Err(refusal::NEXT_FUNCTION);
            }
            displaced.len_bytes += padding as u8;
            continue;
        }
        let decoded = decode_bytes::<M>(rest)?;
        flow = copied::<M>(&decoded.plan.effect, rest)?;
        displaced.push(decoded.len_bytes).ok_or(refusal::TOO_LONG)?;
    }
    Ok(displaced)
}

/// Where control may go from the instruction at `at` other than to the next one: the target of a direct
/// branch.
#[must_use]
pub fn branch_target<M: Mode>(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    if !may_branch::<M>(text) {
        return None;
    }
    let decoded = decode_bytes::<M>(text).ok()?;
    let displacement = match decoded.plan.effect {
        Effect::Jump { displacement }
        | Effect::Branch { displacement, .. }
        | Effect::Call { displacement } => displacement as isize,
        Effect::Loop { displacement, .. } => displacement as isize,
        _ => return None,
    };
    Some(at.wrapping_add(usize::from(decoded.len_bytes)).wrapping_offset(displacement))
}

/// Whether the opcode that `text` begins with, behind prefixes, is that of a direct branch: a walk over a
/// function asks about every instruction.
#[inline]
fn may_branch<M: Mode>(text: &[u8]) -> bool {
    let is_prefix = |byte: &&u8| match **byte {
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => true,
        0x40..=0x4f => M::IS_LONG,
        _ => false,
    };
    let prefixes = text.iter().take_while(is_prefix).count();
    let opcode = text.get(prefixes..).unwrap_or(&[]);
    matches!(
        opcode,
        [0x70..=0x7f | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb, ..] | [0x0f, 0x80..=0x8f, ..]
    )
}

/// Branch predictors take branches for the same whose addresses differ only from this bit on.
const ALIAS_BITS: u32 = 24;
/// No branch of a detour lies within this distance of an address that the predictor takes for the place.
const NO_ALIAS: u32 = 64;

/// The lowest address from `from` on where the jump at `place` may lead, if one is in reach.
///
/// Every byte of the displacement that stands where a displaced instruction starts is `int3`. The predictor
/// does not take the detour's branches for those at the place, which would double the cost of a hit.
#[must_use]
pub fn target<M: Mode>(place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
    let found = lowest_target::<M>(place, displaced, from)?;
    let distance = found.as_usize().wrapping_sub(place.as_usize()) as u32;
    if distance.wrapping_add(NO_ALIAS) << (32 - ALIAS_BITS) >= (2 * NO_ALIAS) << (32 - ALIAS_BITS) {
        return Some(found);
    }
    // Further on, unless there is no other.
    let other = lowest_target::<M>(place, displaced, found.wrapping_add(2 * NO_ALIAS as usize));
    other.filter(|other| *other > found).or(Some(found))
}

fn lowest_target<M: Mode>(place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
    let next = place.wrapping_add(JUMP_LEN);
    let fixed = displaced
        .starts()
        .filter(|start| (1..JUMP_LEN).contains(start))
        .fold(0_u32, |mask, start| mask | 0xff << (8 * (start - 1)));
    let wanted = u32::from_le_bytes([INT3; 4]) & fixed;
    if !M::IS_LONG {
        return target_in_32_bits(next, from, fixed, wanted);
    }
    // With the sign bit turned over, the order of displacements is that of addresses.
    const SIGN: u32 = 1 << 31;
    let distance = i32::try_from(from.offset_from(next).max(i32::MIN as isize)).ok()?;
    let found = lowest_match(distance as u32 ^ SIGN, fixed, (wanted ^ SIGN) & fixed)? ^ SIGN;
    Some(next.wrapping_offset(found as i32 as isize))
}

/// [`lowest_target`] where addresses wrap around, so that every displacement is in reach.
fn target_in_32_bits(next: CodeAddr, from: CodeAddr, fixed: u32, wanted: u32) -> Option<CodeAddr> {
    let (next, from) = (next.as_usize() as u32, from.as_usize() as u32);
    let above = |distance| Some(CodeAddr::new(next.checked_add(distance)? as usize));
    if from >= next {
        return above(lowest_match(from - next, fixed, wanted)?);
    }
    match lowest_match(from.wrapping_sub(next), fixed, wanted) {
        Some(found) => Some(CodeAddr::new(next.wrapping_add(found) as usize)),
        None => above(lowest_match(0, fixed, wanted)?),
    }
}

/// The lowest number not below `from` whose bits under `mask` are those of `value`.
fn lowest_match(from: u32, mask: u32, value: u32) -> Option<u32> {
    let differs = (from ^ value) & mask;
    let Some(top) = differs.checked_ilog2() else { return Some(from) };
    // The bits up to the highest one that is wrong.
    let low = u32::MAX >> (31 - top);
    if value >> top & 1 == 1 {
        return Some(from & !low | value & low);
    }
    // The free bits above it have to count one up: the fixed ones, filled with ones, hand the carry on.
    let counted = (from | mask | low).checked_add(1)?;
    Some(counted & !mask & !low | value)
}

/// The jump from `place` to a detour's entry, in the first [`JUMP_LEN`] bytes.
#[must_use]
pub fn jump(place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
    let [a, b, c, d] = (entry.offset_from(place.wrapping_add(JUMP_LEN)) as i32).to_le_bytes();
    [JMP_REL32, a, b, c, d, 0, 0, 0]
}

/// How far before a detour's entry its memory begins, in bytes: two words in 64-bit mode, and room to align
/// the first one, nothing in 32-bit mode.
#[must_use]
pub const fn header_len<M: Mode>() -> usize {
    if M::IS_LONG { 3 * M::WORD } else { 0 }
}

/// Which trampoline a detour calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trampoline {
    /// [`detour_trampoline`](probe_core::arch::NativeJumps::detour_trampoline).
    Plain,
    /// [`entry_trampoline`](probe_core::arch::NativeJumps::entry_trampoline), that of followed functions: see
    /// [`FOLLOW_LEN`].
    Following,
}

/// Builds the detour whose entry is at `entry`; see
/// [`Jumps::fill_detour`](probe_core::arch::Jumps::fill_detour).
///
/// `text` holds the displaced bytes as they were; `kind` is that of the trampoline in `calls`.
///
/// # Errors
/// [`refusal::OUT_OF_REACH`]; [`refusal::TOO_LONG`] where `out` has no room.
pub fn fill<M: Mode>(
    displaced: &Displaced,
    text: &[u8],
    place: CodeAddr,
    entry: CodeAddr,
    kind: Trampoline,
    calls: &DetourCalls,
    out: &mut [u8],
) -> Result<DetourLayout, Refusal> {
    out.fill(INT3);
    let start = entry.wrapping_offset(-(header_len::<M>() as isize));
    let mut code = Code::<M> { writer: Writer { out, len: 0 }, start, mode: core::marker::PhantomData };
    let mut layout = DetourLayout::default();
    let &DetourCalls { trampoline, word, post_word } = calls;
    let way = match kind {
        Trampoline::Plain => &[][..],
        Trampoline::Following if M::IS_LONG => &FOLLOW,
        Trampoline::Following => &FOLLOW_32,
    };
    code.call(kind, trampoline, word)?;
    code.put(way)?;
    let mut flow = After::Next;
    for (index, offset) in displaced.starts().enumerate() {
        *layout.copies.get_mut(index).ok_or(refusal::TOO_LONG)? = code.len()?;
        let rest = text.get(offset..).ok_or(refusal::UNDECODABLE)?;
        flow = code.copy(rest, place.wrapping_add(offset))?;
        if let Some(word) = post_word.filter(|_| index == 0) {
            if M::IS_LONG {
                // jmp over the words.
                code.put(&[0xeb, header_len::<M>() as u8])?;
            }
            code.call(kind, trampoline, word)?;
            // Nobody takes it here, but the trampoline returns behind it.
            code.put(way)?;
        }
    }
    layout.back = code.len()?;
    if flow == After::Next {
        code.jump(place.wrapping_add(usize::from(displaced.len_bytes)))?;
    }
    layout.len_bytes = code.len()?;
    Ok(layout)
}

/// Whether an instruction can be copied into a detour, and where the flow goes on behind it.
fn copied<M: Mode>(effect: &Effect, text: &[u8]) -> Result<After, Refusal> {
    match effect {
        Effect::Copy
        | Effect::IpRelative { .. }
        | Effect::Ip32Relative { .. }
        | Effect::Nop
        | Effect::Branch { .. }
        | Effect::Stack(_)
        | Effect::MoveRegister { .. }
        | Effect::MoveImmediate { .. } => Ok(After::Next),
        Effect::LoadAddress { operand, .. } => match Insn::parse::<M>(text) {
            Some(insn) if operand.base != MemoryOperand::NEXT_IP || !insn.has(Prefixes::ADDRESS_SIZE) => {
                Ok(After::Next)
            }
            _ => Err(refusal::NOT_COPIED),
        },
        Effect::Jump { .. } | Effect::JumpIndirect(_) | Effect::Return { .. } | Effect::Call { .. } => {
            Ok(After::Elsewhere)
        }
        // Not through RSP, which the copy has moved.
        Effect::CallIndirect(Source::Register(register)) if *register != 4 => Ok(After::Elsewhere),
        Effect::CallIndirect(_)
        | Effect::Loop { .. }
        | Effect::SystemCall
        | Effect::SegmentJump { .. }
        | Effect::SegmentCall { .. } => Err(refusal::NOT_COPIED),
    }
}

/// The length of the piece of padding that `text` starts with: `int3` or a no-operation.
fn padding_len<M: Mode>(text: &[u8]) -> Option<usize> {
    if text.first() == Some(&INT3) {
        return Some(1);
    }
    let decoded = decode_bytes::<M>(text).ok()?;
    (decoded.plan.effect == Effect::Nop).then_some(usize::from(decoded.len_bytes))
}

/// Writes a detour.
struct Code<'a, M> {
    writer: Writer<'a>,
    start: CodeAddr,
    mode: core::marker::PhantomData<M>,
}

impl<M: Mode> Code<'_, M> {
    fn len(&self) -> Result<u8, Refusal> {
        u8::try_from(self.writer.len).map_err(|_| refusal::TOO_LONG)
    }

    fn here(&self) -> CodeAddr {
        self.start.wrapping_add(self.writer.len)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.writer.put(bytes)
    }

    fn word(&mut self, word: usize) -> Result<(), Refusal> {
        let bytes = (word as u64).to_le_bytes();
        self.put(bytes.get(..M::WORD).unwrap_or(&bytes))
    }

    /// A call of the trampoline with its word.
    fn call(&mut self, kind: Trampoline, trampoline: CodeAddr, word: usize) -> Result<(), Refusal> {
        if !M::IS_LONG {
            self.put(if kind == Trampoline::Following { &SKIP_WORD } else { &[] })?;
            self.put(&[PUSH])?;
            self.word(word)?;
            return self.branch(&[0xe8], trampoline);
        }
        let header = self.writer.len;
        self.align()?;
        let at = self.writer.len;
        self.word(trampoline.as_usize())?;
        while self.writer.len < header + header_len::<M>() - M::WORD {
            self.put(&[INT3])?;
        }
        self.word(word)?;
        self.put(&SKIP_RED_ZONE)?;
        self.put(&[0xff, 0x15])?;
        let displacement = at as i32 - (self.writer.len + 4) as i32;
        self.put(&displacement.to_le_bytes())
    }

    /// Fills up to where a word is aligned: a program may have unaligned accesses fault (AC).
    fn align(&mut self) -> Result<(), Refusal> {
        while !self.here().as_usize().is_multiple_of(M::WORD) {
            self.put(&[INT3])?;
        }
        Ok(())
    }

    /// An opcode with a 32-bit displacement to `to`.
    fn branch(&mut self, opcode: &[u8], to: CodeAddr) -> Result<(), Refusal> {
        let from = self.here().wrapping_add(opcode.len() + 4);
        let distance = to.offset_from(from);
        let displacement = if M::IS_LONG {
            i32::try_from(distance).map_err(|_| refusal::OUT_OF_REACH)?
        } else {
            distance as i32
        };
        self.put(opcode)?;
        self.put(&displacement.to_le_bytes())
    }

    /// A jump to `to`, wherever that is.
    fn jump(&mut self, to: CodeAddr) -> Result<(), Refusal> {
        if self.branch(&[JMP_REL32], to).is_ok() {
            return Ok(());
        }
        self.jump_far(to)
    }

    /// A jump through a word of its own.
    fn jump_far(&mut self, to: CodeAddr) -> Result<(), Refusal> {
        self.put(&JMP_INDIRECT)?;
        let behind = self.here().as_usize().wrapping_add(4);
        let displacement = behind.wrapping_neg() % M::WORD;
        self.put(&(displacement as u32).to_le_bytes())?;
        self.align()?;
        self.word(to.as_usize())
    }

    /// Pushes the address that a call at the displaced place would.
    fn push_return_address(&mut self, to: CodeAddr) -> Result<(), Refusal> {
        if !M::IS_LONG {
            self.put(&[0x68])?;
            return self.word(to.as_usize());
        }
        let to = to.as_usize() as u64;
        let [a, b, c, d, high @ ..] = to.to_le_bytes();
        self.put(&[0x68, a, b, c, d])?;
        if to as i32 as u64 != to {
            // mov dword ptr [rsp + 4], imm32
            self.put(&[0xc7, 0x44, 0x24, 0x04])?;
            self.put(&high)?;
        }
        Ok(())
    }

    /// The copy of one displaced instruction, which `text` starts with and which stood at `place`.
    fn copy(&mut self, text: &[u8], place: CodeAddr) -> Result<After, Refusal> {
        let decoded = decode_bytes::<M>(text)?;
        let effect = decoded.plan.effect;
        let flow = copied::<M>(&effect, text)?;
        let insn = text.get(..usize::from(decoded.len_bytes)).ok_or(refusal::UNDECODABLE)?;
        let next = place.wrapping_add(insn.len());
        let here = self.here();
        match effect {
            Effect::IpRelative { displacement_at } => {
                ip_relative(&mut self.writer, insn, displacement_at, place, here)?;
            }
            Effect::Ip32Relative { modrm_at } => ip32_relative::<M>(&mut self.writer, insn, modrm_at, place)?,
            Effect::LoadAddress { operand, .. } | Effect::JumpIndirect(Source::Memory(operand))
                if operand.base == MemoryOperand::NEXT_IP =>
            {
                let parsed = Insn::parse::<M>(insn).ok_or(refusal::UNDECODABLE)?;
                if parsed.has(Prefixes::ADDRESS_SIZE) {
                    return Err(refusal::NOT_COPIED);
                }
                ip_relative(&mut self.writer, insn, parsed.modrm_at + 1, place, here)?;
            }
            Effect::Jump { displacement } => self.jump(next.wrapping_offset(displacement as isize))?,
            Effect::Branch { condition, displacement } => {
                let to = next.wrapping_offset(displacement as isize);
                self.conditional(condition.0, to)?;
            }
            Effect::Call { displacement } => {
                self.push_return_address(next)?;
                self.jump(next.wrapping_offset(displacement as isize))?;
            }
            Effect::CallIndirect(_) => {
                self.push_return_address(next)?;
                let (modrm, prefix) = insn.split_last().ok_or(refusal::UNDECODABLE)?;
                self.put(prefix)?;
                // CALL r/m is extension 2 of group 5, JMP r/m extension 4.
                self.put(&[modrm & 0xc7 | 4 << 3])?;
            }
            _ => self.put(insn)?,
        }
        Ok(flow)
    }

    fn conditional(&mut self, condition: u8, to: CodeAddr) -> Result<(), Refusal> {
        if self.branch(&[0x0f, 0x80 | condition], to).is_ok() {
            return Ok(());
        }
        // The opposite condition skips the far jump.
        let behind = self.here().as_usize().wrapping_add(2 + JMP_INDIRECT.len() + 4);
        let far_len = JMP_INDIRECT.len() + 4 + behind.wrapping_neg() % M::WORD + M::WORD;
        self.put(&[0x70 | condition ^ 1, far_len as u8])?;
        self.jump_far(to)
    }
}

const _: () = assert!(MAX_DISPLACED >= JUMP_LEN);
