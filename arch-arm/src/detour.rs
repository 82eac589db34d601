//! Detours: where the branch that displaces an instruction of an optimised probe leads; in T32 it may
//! displace two.
//!
//! ```text
//! -18  alignment; the trampoline's address and the core's word, for the call before the copies and for that behind the first
//!   0  sub sp, #80; str r0, [sp]; str lr, [sp, #56]
//!      sub r0, pc, _; ldr lr, [r0]; blx lr
//!      ldr lr, [sp, #56]; add sp, #80
//!      the copies, perhaps the same call behind the first; b, behind the displaced instructions
//! ```
//! `b` reaches 32 MiB in A32 and displaces one instruction. `b.w` reaches 16 MiB in T32. If it displaces two
//! instructions, the second starts in its second half, which therefore has to be BKPT: the distance from the
//! program counter then has a certain number in its lowest twelve bits and is less than 4 MiB ([`entry`]).
//! That it is an instruction and no constant is known within a function alone. In an IT block a branch would
//! be conditional, so what may be in one keeps its breakpoint. Pure; called at registration.

use crate::decode::{self, Access, Addressing, Condition, Offset, Operand, Plan};
use crate::insn::{self, Set, field};
use crate::regs::{LR, PC, SP};
use probe_core::CodeAddr;
use probe_core::arch::{DetourCalls, DetourLayout, Displaced, Site};
use probe_core::error::Refusal;

/// The length of the jump.
pub(crate) const JUMP_LEN: usize = 4;
/// The length of the words before the entry, with what aligns them.
pub(crate) const HEADER_LEN: usize = 18;
/// The most bytes of a detour: two calls, two copies, the jump back.
pub(crate) const LEN: usize = HEADER_LEN + 2 * CALL_LEN + 2 * COPY_LEN + 4;
/// The most bytes of a call.
const CALL_LEN: usize = 32;
/// The most bytes of a copy.
const COPY_LEN: usize = 12;

/// The instructions at `site`, one or two, if they have copies.
pub(crate) fn displace(site: &Site<'_>) -> Result<Displaced, Refusal> {
    let set = Set::of(site.at);
    let mut bytes = [0; 8];
    let len = site.text.read(site.at, &mut bytes).min(8);
    let mut displaced = Displaced::default();
    while usize::from(displaced.len_bytes) < JUMP_LEN {
        let offset = usize::from(displaced.len_bytes);
        let at = site.at.wrapping_add(offset);
        // Behind what does not return stands the next function, or a constant of this one.
        if offset != 0 && !is_of_function(&Site { at, ..*site }) {
            return Err(NOT_COPIED);
        }
        let word = bytes.get(offset..len).and_then(|bytes| insn::word_at(set, bytes)).ok_or(NOT_COPIED)?;
        let (plan, _) = decode::classify(set, word)?;
        // What goes away for good may be the last that there is.
        let is_short = insn::len_bytes(set, word) == 2;
        if is_short && offset == 0 && goes_away(&plan)
            || set == Set::T32 && decode::may_be_in_block(&Site { at, ..*site })
        {
            return Err(NOT_COPIED);
        }
        copy(plan, word, at, at)?;
        displaced.push(insn::len_bytes(set, word)).ok_or(NOT_COPIED)?;
    }
    Ok(displaced)
}

/// Whether the place is known to be in the code of the function.
fn is_of_function(site: &Site<'_>) -> bool {
    site.function.is_some_and(|(_, end)| site.at < end) && !decode::is_data(site)
}

/// Whether control does not go on behind an instruction of two bytes.
const fn goes_away(plan: &Plan) -> bool {
    match *plan {
        Plan::Branch { condition, links, .. } => !links && condition.0 == Condition::ALWAYS.0,
        Plan::BranchRegister { links, .. } => !links,
        Plan::Data { rd, .. } => rd == PC,
        Plan::Multiple { loads, .. } => loads,
        _ => false,
    }
}

/// The lowest address in memory from `from` on that the branch at `place` reaches, and from which the detour
/// reaches back. With a second displaced instruction, the lowest for which the second half of the branch is a
/// breakpoint.
pub(crate) fn entry(place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
    let (set, at, from) = (Set::of(place), place.as_usize() & !1, from.as_usize());
    if displaced.starts().any(|start| start == 2) {
        // J1 and J2 are 1; imm11 is that of the breakpoint (A8.8.18, T4).
        const LOW: usize = (field(insn::BREAKPOINT_T32 as u32, 0, 11) as usize) << 1;
        const STEP: usize = 1 << 12;
        const REACH: usize = 1 << 22;
        let zero = at + 4 + LOW;
        let lowest = from.max(zero.saturating_sub(REACH));
        let entry = zero % STEP + lowest.saturating_sub(zero % STEP).checked_next_multiple_of(STEP)?;
        return (entry < zero + REACH).then(|| CodeAddr::new(entry));
    }
    let reach = if set == Set::A32 { 1 << 25 } else { 1 << 24 } - 2 * LEN;
    let entry = from.max(at.saturating_sub(reach)).checked_next_multiple_of(4)?;
    (entry.abs_diff(at) <= reach).then(|| CodeAddr::new(entry))
}

/// The branch from `place` to `entry`.
pub(crate) fn jump(place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
    let mut bytes = [0; 8];
    let branch = match Set::of(place) {
        Set::A32 => insn::branch_a32(distance(place, entry)).map(u32::to_le_bytes),
        Set::T32 => insn::branch_t32(distance(place, entry)),
    };
    let [a, b] = insn::BREAKPOINT_T32.to_le_bytes();
    bytes[..4].copy_from_slice(&branch.unwrap_or([a, b, a, b]));
    bytes
}

/// From `from` to `to`, in the address space of 32 bits, which wraps.
const fn distance(from: CodeAddr, to: CodeAddr) -> isize {
    let distance = (to.as_usize() & !1).wrapping_sub(from.as_usize() & !1) as u32;
    distance.cast_signed() as isize
}

/// A detour that is being written.
struct Image {
    set: Set,
    bytes: [u8; LEN],
    len: usize,
    /// The address of the first byte, with that of the set in bit 0.
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

    /// Writes instructions.
    fn code(&mut self, words: &[u32]) -> Result<(), Refusal> {
        for word in words {
            let [low, high] = [*word as u16, (*word >> 16) as u16].map(u16::to_le_bytes);
            match (self.set, insn::len_bytes(self.set, *word)) {
                (Set::A32, _) => self.put(&word.to_le_bytes())?,
                (Set::T32, 2) => self.put(&low)?,
                (Set::T32, _) => {
                    self.put(&high)?;
                    self.put(&low)?;
                }
            }
        }
        Ok(())
    }

    /// A call of the trampoline whose address lies at `literals`.
    fn call(&mut self, literals: usize) -> Result<(), Refusal> {
        // sub sp, #80; str r0, [sp]; str lr, [sp, #56]; and behind them
        let before: [u32; 3] = match self.set {
            Set::A32 => [0xe24d_d050, 0xe58d_0000, 0xe58d_e038],
            Set::T32 => [0xb094, 0x9000, 0xf8cd_e038],
        };
        self.code(&before)?;
        let counter = (self.at().as_usize() & !1).wrapping_add(self.set.ahead() as usize) & !3;
        let back = u8::try_from(counter.wrapping_sub(literals)).map_err(|_| NOT_COPIED)?;
        // sub r0, pc, #back; ldr lr, [r0]; blx lr; ldr lr, [sp, #56]; add sp, #80
        self.code(&match self.set {
            Set::A32 => [0xe24f_0000 | u32::from(back), 0xe590_e000, 0xe12f_ff3e, 0xe59d_e038, 0xe28d_d050],
            Set::T32 => [0xf2af_0000 | u32::from(back), 0xf8d0_e000, 0x47f0, 0xf8dd_e038, 0xb014],
        })
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
    let set = Set::of(place);
    let start = (entry.as_usize() & !1).wrapping_sub(HEADER_LEN);
    let mut image =
        Image { set, bytes: [0; LEN], len: 0, start: CodeAddr::new(start | place.as_usize() & 1) };
    let literals = start.next_multiple_of(4);
    image.len = literals - start;
    for word in [calls.word, calls.post_word.unwrap_or(0)] {
        image.put(&(calls.trampoline.as_usize() as u32).to_le_bytes())?;
        image.put(&(word as u32).to_le_bytes())?;
    }
    image.len = HEADER_LEN;
    image.call(literals)?;
    let mut layout = DetourLayout::default();
    for (index, offset) in displaced.starts().enumerate() {
        if let (1, Some(_)) = (index, calls.post_word) {
            image.call(literals + 8)?;
        }
        let word = text.get(offset..).and_then(|text| insn::word_at(set, text)).ok_or(NOT_COPIED)?;
        let (plan, _) = decode::classify(set, word)?;
        *layout.copies.get_mut(index).ok_or(NOT_COPIED)? = image.len as u8;
        let copied = copy(plan, word, place.wrapping_add(offset), image.at())?;
        image.code(copied.words())?;
    }
    if calls.post_word.is_some() && displaced.starts().count() == 1 {
        image.call(literals + 8)?;
    }
    layout.back = image.len as u8;
    let next = place.wrapping_add(usize::from(displaced.len_bytes));
    let back = branch(set, image.at(), next)?;
    image.code(&[back])?;
    layout.len_bytes = image.len as u8;
    out.get_mut(..image.len).ok_or(NOT_COPIED)?.copy_from_slice(&image.bytes[..image.len]);
    Ok(layout)
}

/// Instructions with the effect of one; behind the last comes what comes behind it.
struct Copied {
    words: [u32; 3],
    count: usize,
}

impl Copied {
    fn new<const N: usize>(words: [u32; N]) -> Self {
        let mut all = [0; 3];
        all[..N].copy_from_slice(&words);
        Self { words: all, count: N }
    }

    fn words(&self) -> &[u32] {
        &self.words[..self.count]
    }
}

/// The copy at `at` of the instruction of `place`.
fn copy(plan: Plan, word: u32, place: CodeAddr, at: CodeAddr) -> Result<Copied, Refusal> {
    let set = Set::of(place);
    let counter = (place.as_usize() as u32 & !1).wrapping_add(set.ahead());
    let next = place.wrapping_add(usize::from(insn::len_bytes(set, word))).as_usize() as u32;
    Ok(match plan {
        Plan::OutOfLine { .. } | Plan::SystemCall { .. } | Plan::Status { .. } => Copied::new([word]),
        Plan::Nop { .. } => Copied::new([if set == Set::A32 { 0xe320_f000 } else { 0xbf00 }]),
        Plan::Branch { exchanges: false, links, condition, .. } => {
            let (target, _) = decode::direct_branch(set, word, place).ok_or(NOT_COPIED)?;
            branch_copy(set, condition, links.then_some(next), at, target)?
        }
        Plan::CompareBranch { rn, on_nonzero, .. } => {
            let (target, _) = decode::direct_branch(set, word, place).ok_or(NOT_COPIED)?;
            // The opposite, over the branch.
            let over = 0xb108 | u32::from(!on_nonzero) << 11 | u32::from(rn);
            Copied::new([over, branch(set, at.wrapping_add(2), target)?])
        }
        Plan::BranchRegister { links: false, rm, .. } if rm != PC => Copied::new([word]),
        Plan::BranchRegister { links: true, rm, condition, .. } if rm != PC && rm != LR => {
            let [low, high] = number(set, condition, LR, next);
            let rm = u32::from(rm);
            Copied::new([
                low,
                high,
                if set == Set::A32 { conditional(condition, 0x012f_ff10 | rm) } else { 0x4700 | rm << 3 },
            ])
        }
        Plan::Address { rd, offset, .. } if rd != SP => {
            let value = (counter & !3).wrapping_add_signed(offset.into());
            Copied::new(number(set, Condition::ALWAYS, rd, value))
        }
        Plan::Data { .. } => data_copy(plan, word, set, counter)?,
        Plan::Transfer { rn: PC, .. } => literal_copy(plan, set, counter)?,
        Plan::Transfer { access: Access::Load, rt: PC, .. } => Copied::new([word]),
        Plan::Multiple { loads: true, .. } => Copied::new([word]),
        _ => return Err(NOT_COPIED),
    })
}

/// The copy of data processing that reads the program counter, or writes it alone.
fn data_copy(plan: Plan, word: u32, set: Set, counter: u32) -> Result<Copied, Refusal> {
    let Plan::Data { condition, operation, sets_flags: false, rd, rn, operand, .. } = plan else {
        return Err(NOT_COPIED);
    };
    // MOV and MVN have no first operand.
    let has_first = !matches!(operation, 0b1101 | 0b1111);
    let value = match operand {
        _ if rd == PC && !(rn == PC && has_first) && !is_counter(operand) => return Ok(Copied::new([word])),
        _ if rd == PC || rd == SP => return Err(NOT_COPIED),
        Operand::Immediate { value, rotation } if rn == PC => {
            let second = u32::from(value).rotate_right(rotation.into());
            match operation {
                0b0100 => counter.wrapping_add(second),
                0b0010 => counter.wrapping_sub(second),
                _ => return Err(NOT_COPIED),
            }
        }
        Operand::Register { rm: PC, amount: 0, .. } if operation == 0b1101 => counter,
        _ => return Err(NOT_COPIED),
    };
    Ok(Copied::new(number(set, condition, rd, value)))
}

/// The copy of a load relative to the program counter.
fn literal_copy(plan: Plan, set: Set, counter: u32) -> Result<Copied, Refusal> {
    let Plan::Transfer {
        condition,
        access,
        rt,
        addressing: Addressing::Offset,
        offset: Offset::Immediate(offset),
        ..
    } = plan
    else {
        return Err(NOT_COPIED);
    };
    let (a32, t32) = match access {
        _ if rt == PC || rt == SP => return Err(NOT_COPIED),
        Access::Load => (0x0590_0000, 0xf8d0_0000),
        Access::LoadByte => (0x05d0_0000, 0xf890_0000),
        Access::LoadHalf => (0x01d0_00b0, 0xf8b0_0000),
        Access::LoadSignedByte => (0x01d0_00d0, 0xf990_0000),
        Access::LoadSignedHalf => (0x01d0_00f0, 0xf9b0_0000),
        _ => return Err(NOT_COPIED),
    };
    let [low, high] = number(set, condition, rt, (counter & !3).wrapping_add_signed(offset.into()));
    let registers = u32::from(rt) << 16 | u32::from(rt) << 12;
    let load = if set == Set::A32 { conditional(condition, a32) } else { t32 };
    Ok(Copied::new([low, high, load | registers]))
}

const fn is_counter(operand: Operand) -> bool {
    matches!(operand, Operand::Register { rm: PC, .. })
}

/// A branch, from `at`, which puts `link` into LR.
fn branch_copy(
    set: Set,
    condition: Condition,
    link: Option<u32>,
    at: CodeAddr,
    target: CodeAddr,
) -> Result<Copied, Refusal> {
    let is_always = condition == Condition::ALWAYS;
    Ok(match (set, link) {
        (Set::A32, None) => Copied::new([conditional(condition, branch(set, at, target)?)]),
        (Set::A32, Some(next)) => {
            let [low, high] = number(set, condition, LR, next);
            Copied::new([low, high, conditional(condition, branch(set, at.wrapping_add(8), target)?)])
        }
        (Set::T32, Some(next)) => {
            let [low, high] = number(set, Condition::ALWAYS, LR, next);
            Copied::new([low, high, branch(set, at.wrapping_add(8), target)?])
        }
        (Set::T32, None) if is_always => Copied::new([branch(set, at, target)?]),
        // The opposite condition, over the branch.
        (Set::T32, None) => {
            let over = 0xd001 | u32::from(condition.0 ^ 1) << 8;
            Copied::new([over, branch(set, at.wrapping_add(2), target)?])
        }
    })
}

/// `b` or `b.w` at `at` to `to`.
fn branch(set: Set, at: CodeAddr, to: CodeAddr) -> Result<u32, Refusal> {
    match set {
        Set::A32 => insn::branch_a32(distance(at, to)),
        Set::T32 => {
            let halves = |[a, b, c, d]: [u8; 4]| u32::from_le_bytes([c, d, a, b]);
            insn::branch_t32(distance(at, to)).map(halves)
        }
    }
    .ok_or(OUT_OF_REACH)
}

/// An A32 instruction with another condition.
const fn conditional(condition: Condition, word: u32) -> u32 {
    word & 0x0fff_ffff | (condition.0 as u32) << 28
}

/// `movw rd, value; movt rd, value` (A8.8.102, A8.8.106).
fn number(set: Set, condition: Condition, rd: u8, value: u32) -> [u32; 2] {
    let rd = u32::from(rd);
    [(0x0300_0000, 0xf240_0000, value & 0xffff), (0x0340_0000, 0xf2c0_0000, value >> 16)].map(
        |(a32, t32, half)| match set {
            Set::A32 => conditional(condition, a32 | (half >> 12) << 16 | rd << 12 | half & 0xfff),
            Set::T32 => {
                t32 | (half >> 12) << 16
                    | field(half, 11, 1) << 26
                    | field(half, 8, 3) << 12
                    | rd << 8
                    | half & 0xff
            }
        },
    )
}

const NOT_COPIED: Refusal =
    Refusal::unsupported("arm.not_copied", "the instruction cannot run elsewhere without a trap");
const OUT_OF_REACH: Refusal = Refusal::unsupported(
    "arm.out_of_reach",
    "the detour is further away from where the instruction branches than a branch reaches",
);

#[cfg(test)]
mod tests;
