//! Detours: where the `jal x0` that displaces one or two instructions of an optimised probe leads.
//!
//! ```text
//! -40  alignment; the trampoline's address and the core's word, for the call before the copies and for that behind the first
//!   0  c.addi16sp sp, -304; c.sdsp ra, 8(sp); c.sdsp t0, 40(sp)
//!   6  auipc t0, _; addi t0, t0, _; ld ra, (t0); c.jalr ra
//!  20  c.ldsp ra, 8(sp); c.ldsp t0, 40(sp); c.addi16sp sp, 304; c.nop
//!  28  the copies, perhaps the same call behind the first; jal x0, behind the displaced instructions
//! ```
//! `jal` reaches 1 MiB; a place further from all free memory keeps its breakpoint. (`auipc` and `jr` reach
//! further in eight bytes, or six, but an indirect jump into their middle could not be caught: the lowest
//! bits of `jr`, at the fourth byte, leave no room for a breakpoint.) If two instructions are displaced, the
//! second starts in the upper half of the `jal`, which therefore has to be `c.ebreak`: its offset then is one
//! of sixteen ([`entry`]). Pure; called at registration.

use crate::decode::{self, Condition, Plan};
use crate::insn;
use probe_core::CodeAddr;
use probe_core::arch::{DetourCalls, DetourLayout, Displaced, Site};
use probe_core::error::Refusal;

/// The length of the jump.
pub(crate) const JUMP_LEN: usize = 4;
/// The length of the words before the entry.
pub(crate) const HEADER_LEN: usize = 40;
/// The most bytes of a detour: two calls, two copies, the jump back.
pub(crate) const LEN: usize = HEADER_LEN + 2 * CALL_LEN + 2 * 4 * COPY_WORDS + 4;
/// The bytes of a call.
const CALL_LEN: usize = 28;
/// The most words of a copy.
const COPY_WORDS: usize = 3;

/// The instructions at `site`, one of four bytes or two, if they have copies.
pub(crate) fn displace(site: &Site<'_>) -> Result<Displaced, Refusal> {
    let mut bytes = [0; 8];
    let len = site.text.read(site.at, &mut bytes).min(8);
    let mut displaced = Displaced::default();
    while usize::from(displaced.len_bytes) < JUMP_LEN {
        let offset = usize::from(displaced.len_bytes);
        let at = site.at.wrapping_add(offset);
        if offset != 0 && site.function.is_some_and(|(_, end)| at >= end) {
            return Err(NOT_COPIED);
        }
        let word = bytes.get(offset..len).and_then(insn::word_at).ok_or(NOT_COPIED)?;
        let (plan, _) = decode::classify(word)?;
        // What goes away for good may be the last that there is.
        let goes_away = matches!(plan, Plan::Jump { .. } | Plan::JumpRegister { .. });
        if goes_away && insn::len_bytes(word) == 2 && offset == 0 {
            return Err(NOT_COPIED);
        }
        copy(plan, word, at, at)?;
        displaced.push(insn::len_bytes(word)).ok_or(NOT_COPIED)?;
    }
    Ok(displaced)
}

/// Where the instruction that `text` starts with may jump directly.
pub(crate) fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    let (offset, _) = insn::direct_branch(insn::word_at(text)?)?;
    Some(at.wrapping_offset(offset as isize))
}

/// The lowest address from `from` on that `jal` at `place` reaches, and from which the detour reaches back.
/// With a second displaced instruction, the lowest for which the upper half of the `jal` is a breakpoint.
pub(crate) fn entry(place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
    const REACH: usize = (1 << 20) - 2 * LEN;
    if displaced.starts().any(|start| start == 2) {
        let entries = (0..16).map(|k| {
            let word = u32::from(insn::BREAKPOINT) << 16 | k << 12 | 0x6f;
            place.wrapping_offset(insn::immediate_j(word) as isize)
        });
        return entries.filter(|entry| *entry >= from && *entry < place).min();
    }
    let lowest = from.as_usize().max(place.as_usize().saturating_sub(REACH));
    let entry = CodeAddr::new(lowest.checked_next_multiple_of(8)?);
    (entry.abs_diff(place) <= REACH).then_some(entry)
}

/// `jal x0, entry` at `place`.
pub(crate) fn jump(place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
    let breakpoints = u32::from(insn::BREAKPOINT) << 16 | u32::from(insn::BREAKPOINT);
    let word = insn::jump(entry.offset_from(place)).unwrap_or(breakpoints);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// A detour that is being written.
struct Image {
    bytes: [u8; LEN],
    len: usize,
    /// The address of the first byte.
    start: CodeAddr,
}

impl Image {
    /// Where the next byte comes to lie.
    fn at(&self) -> CodeAddr {
        self.start.wrapping_add(self.len)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let end = self.len + bytes.len();
        self.bytes.get_mut(self.len..end).ok_or(NOT_COPIED)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    fn words(&mut self, words: &[u32]) -> Result<(), Refusal> {
        words.iter().try_for_each(|word| self.put(&word.to_le_bytes()))
    }

    fn halves(&mut self, halves: &[u16]) -> Result<(), Refusal> {
        halves.iter().try_for_each(|half| self.put(&half.to_le_bytes()))
    }

    /// A call of the trampoline whose address lies at `literals`.
    fn call(&mut self, literals: CodeAddr) -> Result<(), Refusal> {
        // c.addi16sp sp, -304; c.sdsp ra, 8(sp); c.sdsp t0, 40(sp)
        self.halves(&[0x7169, 0xe406, 0xf416])?;
        const T0: u8 = 5;
        let [high, low] = address(T0, self.at(), literals)?;
        // ld ra, (t0)
        self.words(&[high, low, 0x0002_b083])?;
        // c.jalr ra; c.ldsp ra, 8(sp); c.ldsp t0, 40(sp); c.addi16sp sp, 304; c.nop
        self.halves(&[0x9082, 0x60a2, 0x72a2, 0x6155, 0x0001])
    }
}

/// Builds the detour of the instructions `text` of `place`.
pub(crate) fn fill(
    displaced: &Displaced,
    text: &[u8],
    place: CodeAddr,
    entry: CodeAddr,
    calls: &DetourCalls,
    out: &mut [u8],
) -> Result<DetourLayout, Refusal> {
    let start = entry.wrapping_offset(-(HEADER_LEN as isize));
    let mut image = Image { bytes: [0; LEN], len: 0, start };
    let literals = CodeAddr::new(start.as_usize().next_multiple_of(8));
    image.len = literals.offset_from(start) as usize;
    for word in [calls.word, calls.post_word.unwrap_or(0)] {
        image.put(&(calls.trampoline.as_usize() as u64).to_ne_bytes())?;
        image.put(&(word as u64).to_ne_bytes())?;
    }
    image.len = HEADER_LEN;
    image.call(literals)?;
    let mut layout = DetourLayout::default();
    for (index, offset) in displaced.starts().enumerate() {
        if let (1, Some(_)) = (index, calls.post_word) {
            image.call(literals.wrapping_add(16))?;
        }
        let word = text.get(offset..).and_then(insn::word_at).ok_or(NOT_COPIED)?;
        let (plan, _) = decode::classify(word)?;
        *layout.copies.get_mut(index).ok_or(NOT_COPIED)? = image.len as u8;
        let copied = copy(plan, word, place.wrapping_add(offset), image.at())?;
        image.words(copied.words())?;
    }
    if calls.post_word.is_some() && displaced.starts().count() == 1 {
        image.call(literals.wrapping_add(16))?;
    }
    layout.back = image.len as u8;
    let next = place.wrapping_add(usize::from(displaced.len_bytes));
    let back = insn::jump(next.offset_from(image.at())).ok_or(OUT_OF_REACH)?;
    image.words(&[back])?;
    layout.len_bytes = image.len as u8;
    out.get_mut(..image.len).ok_or(NOT_COPIED)?.copy_from_slice(&image.bytes[..image.len]);
    Ok(layout)
}

/// Instructions with the effect of one; behind the last comes what comes behind it.
struct Copied {
    words: [u32; COPY_WORDS],
    count: usize,
}

impl Copied {
    fn new<const N: usize>(words: [u32; N]) -> Self {
        let mut all = [NOP; COPY_WORDS];
        all[..N].copy_from_slice(&words);
        Self { words: all, count: N }
    }

    fn words(&self) -> &[u32] {
        &self.words[..self.count]
    }
}

/// The copy at `at` of the instruction of `place`.
fn copy(plan: Plan, word: u32, place: CodeAddr, at: CodeAddr) -> Result<Copied, Refusal> {
    let jump = |index: usize, to: CodeAddr| {
        insn::jump(to.offset_from(at.wrapping_add(index * 4))).ok_or(OUT_OF_REACH)
    };
    let next = place.wrapping_add(usize::from(insn::len_bytes(word)));
    let relative = |offset: i32| place.wrapping_offset(offset as isize);
    Ok(match plan {
        Plan::OutOfLine | Plan::SystemCall if insn::len_bytes(word) == 2 => Copied::new([word | C_NOP << 16]),
        Plan::OutOfLine | Plan::SystemCall => Copied::new([word]),
        Plan::Nop { .. } => Copied::new([NOP]),
        Plan::Address { rd, offset } => Copied::new(address(rd, at, relative(offset))?),
        Plan::Jump { rd: 0, offset } => Copied::new([jump(0, relative(offset))?]),
        Plan::Jump { rd, offset } => {
            let [high, low] = address(rd, at, next)?;
            Copied::new([high, low, jump(2, relative(offset))?])
        }
        // A return, or a call through another register than the one that it writes.
        Plan::JumpRegister { rd: 0, rs1, offset, .. } => Copied::new([jump_register(rs1, offset)]),
        Plan::JumpRegister { rd, rs1, offset, .. } if rd != rs1 => {
            let [high, low] = address(rd, at, next)?;
            Copied::new([high, low, jump_register(rs1, offset)])
        }
        Plan::JumpRegister { .. } => return Err(NOT_COPIED),
        // Over the next one to the third, which leaves.
        Plan::Branch { condition, rs1, rs2, offset, .. } => Copied::new([
            branch_by_8(condition, rs1, rs2),
            insn::jump(8).ok_or(OUT_OF_REACH)?,
            jump(2, relative(i32::from(offset)))?,
        ]),
    })
}

/// `auipc rd` at `at`, `addi rd, rd`: the address `to`.
fn address(rd: u8, at: CodeAddr, to: CodeAddr) -> Result<[u32; 2], Refusal> {
    let distance = i32::try_from(to.offset_from(at)).map_err(|_| OUT_OF_REACH)?;
    let high = distance.checked_add(0x800).ok_or(OUT_OF_REACH)? as u32 & !0xfff;
    let low = (distance as u32).wrapping_sub(high) << 20;
    let rd = u32::from(rd);
    Ok([high | rd << 7 | 0x17, low | rd << 15 | rd << 7 | 0x13])
}

/// `jalr x0, offset(rs1)`.
fn jump_register(rs1: u8, offset: i16) -> u32 {
    u32::from(offset.cast_unsigned()) << 20 | u32::from(rs1) << 15 | 0x67
}

/// A branch over one instruction.
fn branch_by_8(condition: Condition, rs1: u8, rs2: u8) -> u32 {
    let funct3 = match condition {
        Condition::Equal => 0,
        Condition::NotEqual => 1,
        Condition::Less => 4,
        Condition::GreaterOrEqual => 5,
        Condition::Below => 6,
        Condition::AboveOrEqual => 7,
    };
    u32::from(rs2) << 20 | u32::from(rs1) << 15 | funct3 << 12 | 8 << 7 | 0x63
}

const NOP: u32 = 0x0000_0013;
const C_NOP: u32 = 0x0001;

const NOT_COPIED: Refusal =
    Refusal::unsupported("riscv64.not_copied", "the instruction cannot run elsewhere without a trap");
const OUT_OF_REACH: Refusal = Refusal::unsupported(
    "riscv64.out_of_reach",
    "the detour is more than 1 MiB away from where the instruction jumps",
);

#[cfg(test)]
mod tests;
