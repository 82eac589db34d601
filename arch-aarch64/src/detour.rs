//! Detours of optimised probes: what the `b` that displaces one instruction leads to.
//!
//! ```text
//! -16  the trampoline's address
//!  -8  the core's word
//!   0  stp x29, x30, [sp, #-48]!; ldr x30, -16; blr x30; ldp x29, x30, [sp], #48
//!  16  the instruction, or others with its effect; b place + 4
//!   n  a literal of those, eight bytes
//! ```
//! Where a branch reaches the trampoline, the detour begins with what that begins with:
//! ```text
//!   0  stp x29, x30, [sp, #-48]!; stp xzr, x0, [sp, #-240]!; bl trampoline + 8; ldp x29, x30, [sp], #48
//! ```
//! Where the trampoline is called a second time, behind the instruction:
//! ```text
//!  20  b over the two words, which are there again, as are the four instructions behind them; b place + 4
//! ```
//! BRK and B may replace each other while another core executes them (DDI 0487J.a B2.2.5). An instruction
//! that indirect branches may land on in a guarded page keeps its breakpoint: a B there would fault (D8.4.4).
//! Pure; called at registration.

use crate::decode::{self, BranchKind, Literal, Plan};
use crate::insn;
use probe_core::CodeAddr;
use probe_core::arch::{DetourCalls, DetourLayout, Displaced, Site};
use probe_core::error::Refusal;

/// The length of the jump.
pub(crate) const JUMP_LEN: usize = 4;
/// The most bytes of a detour.
pub(crate) const LEN: usize = HEADER_LEN + COPY + LITERAL + 8;
/// The length of the two words before the entry.
pub(crate) const HEADER_LEN: usize = 16;

/// The call of the trampoline from wherever it is.
const FAR_CALL: [u32; 4] = [0xa9bd_7bfd, 0x58ff_ff7e, 0xd63f_03c0, 0xa8c3_7bfd];
/// `stp xzr, x0, [sp, #-240]!`: the first instruction of a trampoline behind its landing pad.
const SAVE_X0: u32 = 0xa9b1_03ff;
/// The length of the landing pad and of that instruction: a detour enters a near trampoline behind them.
const NEAR_ENTRY: usize = 8;
/// The first copied instruction, from the entry.
const COPY: usize = 16;

/// The one instruction at `site`, if it has a copy and need not be a landing pad.
pub(crate) fn displace(site: &Site<'_>) -> Result<Displaced, Refusal> {
    let mut bytes = [0; 4];
    if site.text.read(site.at, &mut bytes) < bytes.len() {
        return Err(NOT_COPIED);
    }
    let word = u32::from_le_bytes(bytes);
    if insn::BTI.matches(word) || insn::PACI_SP.matches(word) {
        return Err(LANDING_PAD);
    }
    let (plan, _) = decode::classify(word)?;
    let nowhere = CodeAddr::new(0);
    copy(plan, word, site.at, nowhere, Reach::Unchecked)?;
    let mut displaced = Displaced::default();
    displaced.push(4).ok_or(NOT_COPIED)?;
    Ok(displaced)
}

/// Where the instruction that `text` starts with may branch directly.
pub(crate) fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    Some(at.wrapping_offset(insn::direct_branch(insn::word_at(text)?)? as isize))
}

/// The lowest multiple of eight from `from` that `b` at `place` reaches, so that `b` in the detour reaches
/// back.
pub(crate) fn entry(place: CodeAddr, from: CodeAddr) -> Option<CodeAddr> {
    const REACH: usize = (1 << 27) - 2 * LEN;
    let lowest = from.as_usize().max(place.as_usize().saturating_sub(REACH));
    let entry = CodeAddr::new(lowest.checked_next_multiple_of(8)?);
    (entry.abs_diff(place) <= REACH).then_some(entry)
}

/// `b entry` at `place`.
pub(crate) fn jump(place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
    let word = insn::branch(entry.offset_from(place)).unwrap_or(insn::breakpoint(insn::PROBE_IMM));
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// Builds the detour of the instruction `text` of `place`.
pub(crate) fn fill(
    text: &[u8],
    place: CodeAddr,
    entry: CodeAddr,
    &DetourCalls { trampoline, word, post_word: post }: &DetourCalls,
    out: &mut [u8],
) -> Result<DetourLayout, Refusal> {
    let original = insn::word_at(text).ok_or(NOT_COPIED)?;
    let (plan, _) = decode::classify(original)?;
    let at = entry.wrapping_add(COPY);
    let offset = |from_entry: usize| (HEADER_LEN + from_entry) as u8;
    let Copied { mut words, literal, mut back } = copy(plan, original, place, at, Reach::Checked)?;
    let header = |word: usize| {
        let (trampoline, word) = (trampoline.as_usize() as u64, word as u64);
        [trampoline as u32, (trampoline >> 32) as u32, word as u32, (word >> 32) as u32]
    };
    let call = |at: CodeAddr| {
        let [save, _, _, restore] = FAR_CALL;
        let near = insn::branch(trampoline.wrapping_add(NEAR_ENTRY).offset_from(at.wrapping_add(8)));
        near.map_or(FAR_CALL, |branch| [save, SAVE_X0, branch | 1 << 31, restore])
    };
    let mut layout = DetourLayout { len_bytes: LEN as u8, ..DetourLayout::default() };
    if let Some(post) = post {
        let skip = insn::branch(20).filter(|_| back == 4).ok_or(NOT_COPIED)?;
        back = 40;
        let next = insn::branch(place.wrapping_add(4).offset_from(at.wrapping_add(back)));
        words[1] = skip;
        words[2..6].copy_from_slice(&header(post));
        words[6..10].copy_from_slice(&call(at.wrapping_add(24)));
        words[10] = next.ok_or(OUT_OF_REACH)?;
    }
    let mut image = [0; LEN];
    let code = header(word).into_iter().chain(call(entry)).chain(words);
    for (bytes, word) in image.chunks_exact_mut(4).zip(code) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let literal_at = HEADER_LEN + COPY + LITERAL;
    image[literal_at..literal_at + 8].copy_from_slice(&literal.to_ne_bytes());
    out.get_mut(..LEN).ok_or(NOT_COPIED)?.copy_from_slice(&image);
    (layout.copies[0], layout.back) = (offset(COPY), offset(COPY + back));
    Ok(layout)
}

/// How many instructions a copy may have.
const COPY_WORDS: usize = 12;
/// Where a copy's literal is, from its first instruction.
const LITERAL: usize = COPY_WORDS * 4;

/// Instructions with the effect of one, and the literal that they load.
struct Copied {
    words: [u32; COPY_WORDS],
    literal: u64,
    /// Where the branch back is, in bytes.
    back: usize,
}

/// Whether the distances are known already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Checked,
    Unchecked,
}

/// The copy at `at` of the instruction of `place`.
fn copy(plan: Plan, word: u32, place: CodeAddr, at: CodeAddr, reach: Reach) -> Result<Copied, Refusal> {
    let b = |index: usize, to: CodeAddr| match insn::branch(to.offset_from(at.wrapping_add(index * 4))) {
        Some(word) => Ok(word),
        None if reach == Reach::Unchecked => Ok(0),
        None => Err(OUT_OF_REACH),
    };
    let next = place.wrapping_add(4);
    let relative = |offset: i32| place.wrapping_offset(offset as isize);
    // `ldr Xt, literal` at word `index`.
    let load = |index: usize, rt: u8| 0x5800_0000 | ((LITERAL / 4 - index) as u32) << 5 | u32::from(rt);
    let number = |at: CodeAddr| at.as_usize() as u64;
    let mut copied = Copied { words: [insn::breakpoint(insn::PROBE_IMM); COPY_WORDS], literal: 0, back: 4 };
    let words = &mut copied.words;
    match plan {
        Plan::OutOfLine | Plan::SystemCall => [words[0], words[1]] = [word, b(1, next)?],
        Plan::Nop => [words[0], words[1]] = [NOP, b(1, next)?],
        Plan::Branch { offset } => words[0] = b(0, relative(offset))?,
        Plan::BranchLink { offset } => {
            copied.literal = number(next);
            [words[0], words[1]] = [load(0, 30), b(1, relative(offset))?];
        }
        // Imm19 and imm14 both start at bit 5: eight bytes on.
        Plan::BranchCondition { offset, .. } | Plan::CompareBranch { offset, .. } => {
            [words[0], words[1], words[2]] =
                [word & !(0x7_ffff << 5) | 2 << 5, b(1, next)?, b(2, relative(offset))?];
        }
        Plan::TestBranch { offset, .. } => {
            [words[0], words[1], words[2]] =
                [word & !(0x3fff << 5) | 2 << 5, b(1, next)?, b(2, relative(offset))?];
        }
        Plan::Address { rd, offset } if rd != 31 => {
            copied.literal = number(relative(offset));
            [words[0], words[1]] = [load(0, rd), b(1, next)?];
        }
        Plan::PageAddress { rd, pages } if rd != 31 => {
            copied.literal = (number(place) & !0xfff).wrapping_add_signed(i64::from(pages) << 12);
            [words[0], words[1]] = [load(0, rd), b(1, next)?];
        }
        Plan::LoadLiteral { rt, literal, offset } if rt != 31 => {
            copied.literal = number(relative(offset));
            // LDR, LDRSW (immediate, unsigned offset) with imm12 = 0, C6.2.166.
            let through = match literal {
                Literal::Word => 0xb940_0000,
                Literal::SignedWord => 0xb980_0000,
                Literal::Doubleword => 0xf940_0000,
            } | u32::from(rt) << 5
                | u32::from(rt);
            [words[0], words[1], words[2]] = [load(0, rt), through, b(2, next)?];
            copied.back = 8;
        }
        Plan::LoadLiteralSimd { load: through, offset } => {
            copied.literal = number(relative(offset));
            // str x16, [sp, #-16]!; …; ldr x16, [sp], #16.
            [words[0], words[1], words[2], words[3], words[4]] =
                [0xf81f_0ff0, load(1, 16), through, 0xf841_07f0, b(4, next)?];
            copied.back = 16;
        }
        Plan::BranchRegister { kind: BranchKind::Jump | BranchKind::Return, .. }
        | Plan::AuthenticatedBranch { kind: BranchKind::Jump | BranchKind::Return, .. } => words[0] = word,
        _ => return Err(NOT_COPIED),
    }
    Ok(copied)
}

const NOP: u32 = 0xd503_201f;

const NOT_COPIED: Refusal =
    Refusal::unsupported("aarch64.not_copied", "the instruction cannot run elsewhere without a trap");
const LANDING_PAD: Refusal = Refusal::unsupported(
    "aarch64.landing_pad",
    "indirect branches may land here, and in a guarded page they may not land on a branch",
);
const OUT_OF_REACH: Refusal = Refusal::unsupported(
    "aarch64.out_of_reach",
    "the detour is more than 128 MiB away from where the instruction branches",
);

#[cfg(test)]
mod tests;
