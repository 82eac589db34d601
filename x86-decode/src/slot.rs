//! The out-of-line copy of an instruction: built, entered, left.
//!
//! A slot is the copy (relocated where it must be), one byte that is either `int3` or the opcode of `jmp
//! rel32`, and that jump's displacement. The displacement is always there, so that one byte switches the tail
//! at once on every processor; where the jump does not reach, breakpoints stand there.

use crate::MAX_INSN_LEN;
use crate::insn::{Insn, Map, REX_X};
use crate::mode::Mode;
use crate::plan::{Effect, Plan};
use crate::refusal;
use crate::registers::{Registers, StepState};
use probe_core::CodeAddr;
use probe_core::arch::{Tail, TailPatch};
use probe_core::error::Refusal;

const INT3: u8 = 0xcc;
const JMP_REL32: u8 = 0xe9;
/// `xchg [rsp], r` without its REX prefix and with register 0.
const XCHG_STACK_TOP: [u8; 3] = [0x87, 0x04, 0x24];

/// Builds the slot of the instruction `insn` of `place` at `slot`; see
/// [`Arch::fill_slot`](probe_core::arch::Arch::fill_slot).
///
/// # Errors
/// [`refusal::OUT_OF_REACH`]; [`refusal::TOO_LONG`] where `out` has no room.
pub fn fill_slot<M: Mode>(
    plan: &Plan,
    insn: &[u8],
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
    out: &mut [u8],
) -> Result<(), Refusal> {
    out.fill(INT3);
    let mut code = Writer { out, len: 0 };
    let insn = insn.get(..usize::from(plan.len_bytes)).ok_or(refusal::UNDECODABLE)?;
    match plan.effect {
        Effect::IpRelative { displacement_at } => ip_relative(&mut code, insn, displacement_at, place, slot)?,
        Effect::Ip32Relative { modrm_at } => ip32_relative::<M>(&mut code, insn, modrm_at, place)?,
        Effect::SegmentJump { opcode_at } => segment_jump::<M>(&mut code, insn, opcode_at)?,
        Effect::SegmentCall { opcode_at, borrowed } => {
            segment_call::<M>(&mut code, insn, opcode_at, borrowed)?
        }
        _ => code.put(insn)?,
    }
    debug_assert_eq!(code.len, copy_len::<M>(plan, insn));
    let jump = jump_back(code.len, plan.len_bytes, place, slot);
    let first = if tail == Tail::Jump && jump.is_some() { JMP_REL32 } else { INT3 };
    code.put(&[first])?;
    code.put(&jump.unwrap_or([INT3; 4]))
}

/// The store that gives a slot the other tail; see [`Arch::tail`](probe_core::arch::Arch::tail).
#[must_use]
pub fn tail(plan: &Plan, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
    let copy = match plan.effect {
        Effect::Copy | Effect::IpRelative { .. } => usize::from(plan.len_bytes),
        Effect::Ip32Relative { .. } => usize::from(plan.len_bytes) + 1,
        _ => return None,
    };
    jump_back(copy, plan.len_bytes, place, slot)?;
    let first = if tail == Tail::Jump { JMP_REL32 } else { INT3 };
    Some(TailPatch { offset: u8::try_from(copy).ok()?, len_bytes: 1, bytes: [first, INT3, INT3, INT3] })
}

/// Prepares the registers for running the slot.
pub fn before_step<R: Registers>(plan: &Plan, place: CodeAddr, slot: CodeAddr, regs: &mut R) -> StepState {
    let mut state = StepState::default();
    if let Some(borrowed) = borrowed(plan) {
        state.saved = regs.general(borrowed);
    }
    if let Effect::SegmentCall { borrowed, .. } = plan.effect {
        regs.set_general(borrowed, next_of(plan, place).as_usize() as u64);
    }
    regs.set_pc(slot);
    state
}

/// Finishes after the slot's trailing breakpoint.
pub fn after_step<R: Registers>(
    plan: &Plan,
    place: CodeAddr,
    slot: CodeAddr,
    regs: &mut R,
    state: &StepState,
) {
    let mut next = next_of(plan, place);
    if let Some(borrowed) = borrowed(plan) {
        // The slot has put the branch's target there.
        next = CodeAddr::new(regs.general(borrowed) as usize);
        regs.set_general(borrowed, state.saved);
    }
    if plan.effect == Effect::SystemCall {
        const CX: u8 = 1;
        let leaked = slot.wrapping_add(usize::from(plan.len_bytes)).as_usize() as u64;
        // Not where the kernel has set all registers itself (a signal's return).
        if regs.general(CX) == leaked {
            regs.set_general(CX, next.as_usize() as u64);
        }
    }
    regs.set_pc(next);
}

/// Undoes [`before_step`] when the instruction in the slot has faulted.
pub fn abort_step<R: Registers>(plan: &Plan, place: CodeAddr, regs: &mut R, state: &StepState) {
    if let Some(borrowed) = borrowed(plan) {
        regs.set_general(borrowed, state.saved);
    }
    regs.set_pc(place);
}

/// Whether what [`before_step`] keeps is needed.
pub fn keeps_state(plan: &Plan) -> bool {
    borrowed(plan).is_some()
}

/// The register that the slot works with.
fn borrowed(plan: &Plan) -> Option<u8> {
    match plan.effect {
        Effect::SegmentJump { .. } => Some(0),
        Effect::SegmentCall { borrowed, .. } => Some(borrowed),
        _ => None,
    }
}

fn next_of(plan: &Plan, place: CodeAddr) -> CodeAddr {
    place.wrapping_add(usize::from(plan.len_bytes))
}

/// The length of what a slot holds before its tail.
fn copy_len<M: Mode>(plan: &Plan, insn: &[u8]) -> usize {
    let len = usize::from(plan.len_bytes);
    match plan.effect {
        Effect::Ip32Relative { .. } => len + 1,
        Effect::SegmentJump { opcode_at } => {
            len + usize::from(M::IS_LONG && rex_before(insn, usize::from(opcode_at)).is_none())
        }
        Effect::SegmentCall { .. } => len + XCHG_STACK_TOP.len() + usize::from(M::IS_LONG),
        _ => len,
    }
}

/// The displacement of the jump from behind a copy of `copy_len` bytes to the next instruction in the text.
fn jump_back(copy_len: usize, insn_len: u8, place: CodeAddr, slot: CodeAddr) -> Option<[u8; 4]> {
    let from = slot.wrapping_add(copy_len + 5);
    let to = place.wrapping_add(usize::from(insn_len));
    i32::try_from(to.offset_from(from)).ok().map(i32::to_le_bytes)
}

pub(crate) fn ip_relative(
    code: &mut Writer<'_>,
    insn: &[u8],
    displacement_at: u8,
    place: CodeAddr,
    slot: CodeAddr,
) -> Result<(), Refusal> {
    let (before, displacement, after) = split(insn, usize::from(displacement_at))?;
    let moved = i64::from(i32::from_le_bytes(displacement)) + place.offset_from(slot) as i64;
    let moved = i32::try_from(moved).map_err(|_| refusal::OUT_OF_REACH)?;
    code.put(before)?;
    code.put(&moved.to_le_bytes())?;
    code.put(after)
}

/// `67 op [rip + d]` becomes `67 op [disp32]`: ModRM.rm 4 and a SIB byte without base and index. REX, VEX,
/// EVEX and XOP lose the bit that would make an index of that SIB byte; beside RIP it means nothing.
pub(crate) fn ip32_relative<M: Mode>(
    code: &mut Writer<'_>,
    insn: &[u8],
    modrm_at: u8,
    place: CodeAddr,
) -> Result<(), Refusal> {
    const SIB_ABSOLUTE: u8 = 0x25;
    let (before, displacement, after) = split(insn, usize::from(modrm_at) + 1)?;
    let (modrm, prefix) = before.split_last().ok_or(refusal::UNDECODABLE)?;
    let mut kept = [0; MAX_INSN_LEN];
    let kept = kept.get_mut(..prefix.len()).ok_or(refusal::UNDECODABLE)?;
    kept.copy_from_slice(prefix);
    without_index(kept, &Insn::parse::<M>(insn).ok_or(refusal::UNDECODABLE)?);
    let next = place.wrapping_add(insn.len()).as_usize() as u32;
    let target = next.wrapping_add_signed(i32::from_le_bytes(displacement));
    code.put(kept)?;
    code.put(&[modrm & 0x38 | 4, SIB_ABSOLUTE])?;
    code.put(&target.to_le_bytes())?;
    code.put(after)
}

/// Clears the fourth bit of SIB.index in what stands before the ModRM byte; but for REX, it is stored
/// inverted.
fn without_index(before_modrm: &mut [u8], insn: &Insn) {
    const INVERTED_X: u8 = 0x40;
    const VEX3: u8 = 0xc4;
    let from_end = |back: usize| before_modrm.len().checked_sub(back);
    let (at, is_inverted) = match insn.map {
        // Right before the opcode and its escapes.
        Map::Primary => (from_end(2), false),
        Map::Escape0F => (from_end(3), false),
        Map::Escape0F38 | Map::Escape0F3A => (from_end(4), false),
        Map::Vex(_) if from_end(4).and_then(|at| before_modrm.get(at)) == Some(&VEX3) => (from_end(3), true),
        // The two-byte form has none.
        Map::Vex(_) => return,
        Map::Xop(_) => (from_end(3), true),
        Map::Evex(_) => (from_end(4), true),
    };
    let Some(byte) = at.and_then(|at| before_modrm.get_mut(at)) else { return };
    if is_inverted {
        *byte |= INVERTED_X;
    } else if insn.rex != 0 {
        *byte &= !REX_X;
    }
}

/// `jmp seg:[m]` becomes `mov rax, seg:[m]`.
fn segment_jump<M: Mode>(code: &mut Writer<'_>, insn: &[u8], opcode_at: u8) -> Result<(), Refusal> {
    const MOV_LOAD: u8 = 0x8b;
    let opcode_at = usize::from(opcode_at);
    let rex = rex_before(insn, opcode_at).filter(|_| M::IS_LONG);
    let prefix = insn.get(..opcode_at - usize::from(rex.is_some())).ok_or(refusal::UNDECODABLE)?;
    let [_, modrm, rest @ ..] = insn.get(opcode_at..).unwrap_or(&[]) else {
        return Err(refusal::UNDECODABLE);
    };
    code.put(prefix)?;
    if M::IS_LONG {
        // REX.W set, REX.R clear.
        code.put(&[rex.unwrap_or(0x40) & !4 | 8])?;
    }
    code.put(&[MOV_LOAD, modrm & 0xc7])?;
    code.put(rest)
}

/// `call seg:[m]` becomes `push seg:[m]; xchg [rsp], borrowed`.
fn segment_call<M: Mode>(
    code: &mut Writer<'_>,
    insn: &[u8],
    opcode_at: u8,
    borrowed: u8,
) -> Result<(), Refusal> {
    const PUSH_EXTENSION: u8 = 6 << 3;
    let modrm_at = usize::from(opcode_at) + 1;
    let (Some(before), Some([modrm, rest @ ..])) = (insn.get(..modrm_at), insn.get(modrm_at..)) else {
        return Err(refusal::UNDECODABLE);
    };
    code.put(before)?;
    code.put(&[modrm & 0xc7 | PUSH_EXTENSION])?;
    code.put(rest)?;
    if M::IS_LONG {
        code.put(&[0x48])?;
    }
    let [opcode, modrm, sib] = XCHG_STACK_TOP;
    code.put(&[opcode, modrm | borrowed << 3, sib])
}

/// The REX prefix in front of the opcode, in 64-bit mode.
fn rex_before(insn: &[u8], opcode_at: usize) -> Option<u8> {
    let byte = *insn.get(opcode_at.checked_sub(1)?)?;
    (byte & 0xf0 == 0x40).then_some(byte)
}

/// What lies before a displacement, the displacement, what lies after it.
type Split<'a> = (&'a [u8], [u8; 4], &'a [u8]);

/// The instruction before, in and after the four bytes at `at`.
fn split(insn: &[u8], at: usize) -> Result<Split<'_>, Refusal> {
    let before = insn.get(..at).ok_or(refusal::UNDECODABLE)?;
    let (four, after) =
        insn.get(at..).and_then(|rest| rest.split_first_chunk::<4>()).ok_or(refusal::UNDECODABLE)?;
    Ok((before, *four, after))
}

/// Appends to a slot.
pub(crate) struct Writer<'a> {
    pub(crate) out: &'a mut [u8],
    pub(crate) len: usize,
}

impl Writer<'_> {
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let room = self.out.get_mut(self.len..self.len + bytes.len()).ok_or(refusal::TOO_LONG)?;
        room.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }
}
