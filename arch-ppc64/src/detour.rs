//! Detours: where the `b` of an optimised probe leads.
//!
//! ```text
//! -24   the core's word
//! -16   the trampoline's address
//!  -8   the core's word
//!   0   a frame below the red zone; r0, r12, LR and CTR stored into it; the call of the trampoline, by `bl` where it is in
//!       reach: then the core's word lies WORD_DISTANCE before the return address
//! RESUME  the same four registers loaded again, the frame dropped
//! COPY  the instruction, or others with its effect; `b` to the next one
//! ```
//! Where the trampoline is called a second time, behind the instruction:
//! ```text
//!       `b` over a copy of the three words and of all from 0 to COPY; then `b` to the next instruction
//! ```
//! `trap` and `b` may replace each other while another thread executes them: `b` is a patch-class
//! instruction. Source: Power ISA, Book II, "Concurrent Modification and Execution of Instructions". Pure;
//! called at registration.

use crate::decode::{self, Plan};
use crate::{Endian, insn};
use probe_core::CodeAddr;
use probe_core::arch::{DetourCalls, DetourLayout, Displaced, Site};
use probe_core::error::Refusal;

/// The length of the jump.
pub(crate) const JUMP_LEN: usize = 4;
/// The most bytes of a detour.
pub(crate) const LEN: usize = 2 * (HEADER_LEN + FAR_COPY) + 16;
/// The length of the three words before the entry.
pub(crate) const HEADER_LEN: usize = 24;

/// The frame of a detour: a veneer's, and the red zone of a kernel or a process.
pub(crate) const FRAME: usize = crate::call::VENEER_FRAME + 512;

/// The first copied instruction, from the entry, where the trampoline is not in reach.
const FAR_COPY: usize = (SAVE.len() + FAR_CALL.len() + AFTER) * 4;
/// How many instructions lie between the call of the trampoline and that.
pub(crate) const AFTER: usize = RESTORE.len();
/// How far before the return address of the call the core's word lies, in bytes.
pub(crate) const WORD_DISTANCE: usize = (SAVE.len() + FAR_CALL.len()) * 4 + 8;

const SAVE: [u32; 7] = [
    0xf821_fc21, // stdu 1,-992(1)
    0xf801_0070, // std 0,112(1)
    0xf981_00d0, // std 12,208(1)
    0x7c08_02a6, // mflr 0
    0xf801_0190, // std 0,400(1)
    0x7c09_02a6, // mfctr 0
    0xf801_0188, // std 0,392(1)
];

const FAR_CALL: [u32; 5] = [
    0x429f_0005, // bcl 20,31,.+4
    0x7d88_02a6, // mflr 12
    0xe80c_ffd0, // ld 0,-48(12)
    0x7c09_03a6, // mtctr 0
    0x4e80_0421, // bctrl
];

const RESTORE: [u32; 7] = [
    0xe801_0188, // ld 0,392(1)
    0x7c09_03a6, // mtctr 0
    0xe801_0190, // ld 0,400(1)
    0x7c08_03a6, // mtlr 0
    0xe981_00d0, // ld 12,208(1)
    0xe801_0070, // ld 0,112(1)
    0x3821_03e0, // addi 1,1,992
];

const _: () = {
    use crate::call::{KEPT_CTR, KEPT_LR, KEPT_R0, KEPT_R12};
    assert!(SAVE[0] == 0xf821_0001 | (0x1_0000 - FRAME) as u32);
    assert!(SAVE[1] == 0xf801_0000 | KEPT_R0 as u32 && SAVE[2] == 0xf981_0000 | KEPT_R12 as u32);
    assert!(SAVE[4] == 0xf801_0000 | KEPT_LR as u32 && SAVE[6] == 0xf801_0000 | KEPT_CTR as u32);
    // A direct call is as much shorter as the first word lies before the other.
    assert!(WORD_DISTANCE == (SAVE.len() + 1) * 4 + HEADER_LEN);
    assert!((8 + FAR_COPY) % 16 == 4 && (FAR_CALL.len() - 1) * 4 == 16);
};

/// The one instruction at `site`, if it has a copy.
pub(crate) fn displace<E: Endian>(site: &Site<'_>) -> Result<Displaced, Refusal> {
    let decoded = decode::decode::<E>(site)?;
    if !is_copied(&decoded.plan) {
        return Err(NOT_COPIED);
    }
    let mut displaced = Displaced::default();
    displaced.push(decoded.len_bytes).ok_or(NOT_COPIED)?;
    Ok(displaced)
}

/// Whether there is something with the same effect elsewhere that needs no register.
fn is_copied(plan: &Plan) -> bool {
    match *plan {
        Plan::Copy | Plan::Relocate | Plan::Sc | Plan::Nop | Plan::Mfspr(_) | Plan::Mtspr(_) => true,
        Plan::B(word) | Plan::Bc(word) | Plan::Bclr(word) | Plan::Bcctr(word) | Plan::Bctar(word) => {
            !insn::lk(word)
        }
        Plan::Scv | Plan::Mfmsr(_) | Plan::Addpcis(_) => false,
    }
}

/// Where the instruction that `text` starts with may branch directly.
pub(crate) fn branch_target<E: Endian>(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    insn::branch_target(E::word(*text.first_chunk()?), at)
}

/// The lowest odd multiple of 8 from `from` that `b` at `place` reaches, so that `b` in the detour reaches
/// back. At such an address the words are aligned, and no prefixed instruction in a first copy crosses 64
/// bytes.
pub(crate) fn entry(place: CodeAddr, from: CodeAddr) -> Option<CodeAddr> {
    const REACH: usize = 0x200_0000 - 2 * LEN;
    let lowest = from.as_usize().max(place.as_usize().saturating_sub(REACH));
    let entry = CodeAddr::new(lowest.checked_add(8)?.checked_next_multiple_of(16)? - 8);
    (entry.abs_diff(place) <= REACH).then_some(entry)
}

/// `b entry` at `place`.
pub(crate) fn jump<E: Endian>(place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
    let word = insn::b(entry.offset_from(place) as i64).unwrap_or(insn::TRAP);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&E::bytes(word));
    bytes
}

/// Builds the detour of the instruction `text` of `place`.
pub(crate) fn fill<E: Endian>(
    text: &[u8],
    place: CodeAddr,
    entry: CodeAddr,
    &DetourCalls { trampoline, word, post_word: post }: &DetourCalls,
    out: &mut [u8],
) -> Result<DetourLayout, Refusal> {
    let mut image = [0; LEN];
    // The words, and the code at `at` from the entry that calls the trampoline; where that ends.
    let mut call = |at: usize, word: usize| {
        let from = entry.wrapping_add(at + 4 * SAVE.len());
        let near = insn::b(trampoline.offset_from(from) as i64).map(|b| [b | 1]);
        let call = near.as_ref().map_or(&FAR_CALL[..], |bl| bl);
        let words = [word, trampoline.as_usize(), word];
        let header = image[at..].chunks_exact_mut(8).zip(words);
        header.for_each(|(bytes, word)| bytes.copy_from_slice(&E::doubleword_bytes(word as u64)));
        let code = SAVE.iter().chain(call).chain(&RESTORE);
        put::<E>(&mut image[at + HEADER_LEN..], code);
        at + 4 * (SAVE.len() + call.len() + RESTORE.len())
    };
    let copy_at = call(0, word);
    let (copy, mut back) = copy::<E>(text, place, entry.wrapping_add(copy_at))?;
    back += copy_at;
    let offset = |from_entry: usize| (HEADER_LEN + from_entry) as u8;
    let mut layout = DetourLayout::default();
    layout.copies[0] = offset(copy_at);
    match post {
        Some(post) => {
            let skip = back;
            back = call(skip + 4 + HEADER_LEN, post);
            let next = place.wrapping_add(text.len());
            let b = insn::b(next.offset_from(entry.wrapping_add(back)) as i64);
            put::<E>(&mut image[HEADER_LEN + copy_at..HEADER_LEN + skip], &copy);
            put::<E>(&mut image[HEADER_LEN + skip..], &[insn::b(4 + HEADER_LEN as i64).ok_or(NOT_COPIED)?]);
            put::<E>(&mut image[HEADER_LEN + back..], &[b.ok_or(insn::REFUSE_SLOT_REACH)?]);
        }
        None => put::<E>(&mut image[HEADER_LEN + copy_at..], &copy),
    }
    let len = if post.is_some() { HEADER_LEN + back + 4 } else { HEADER_LEN + copy_at + 16 };
    out.get_mut(..len).ok_or(NOT_COPIED)?.copy_from_slice(&image[..len]);
    (layout.back, layout.len_bytes) = (offset(back), len as u8);
    Ok(layout)
}

/// Writes instructions.
fn put<'a, E: Endian>(bytes: &mut [u8], words: impl IntoIterator<Item = &'a u32>) {
    let bytes = bytes.chunks_exact_mut(4).zip(words);
    bytes.for_each(|(bytes, word)| bytes.copy_from_slice(&E::bytes(*word)));
}

/// The instructions with the effect of the one at `place`, to lie at `at`, and where the branch back is in
/// bytes.
fn copy<E: Endian>(text: &[u8], place: CodeAddr, at: CodeAddr) -> Result<([u32; 4], usize), Refusal> {
    let (words, rest) = text.as_chunks::<4>();
    let (first, second) = match words {
        [first] if rest.is_empty() => (E::word(*first), None),
        [first, second] => (E::word(*first), Some(E::word(*second))),
        _ => return Err(NOT_COPIED),
    };
    let b = |index: usize, to: CodeAddr| {
        insn::b(to.offset_from(at.wrapping_add(4 * index)) as i64).ok_or(insn::REFUSE_SLOT_REACH)
    };
    let next = place.wrapping_add(text.len());
    let relative = |distance: i64, is_absolute: bool| {
        if is_absolute { CodeAddr::new(distance as usize) } else { place.wrapping_offset(distance as isize) }
    };
    if let Some(suffix) = second {
        let (mut prefix, mut suffix) = (first, suffix);
        if decode::is_relocated::<E>(prefix, suffix, place)? {
            let distance = insn::prefix_displacement(prefix, suffix) + place.offset_from(at) as i64;
            (prefix, suffix) =
                insn::with_prefix_displacement(prefix, suffix, distance).ok_or(insn::REFUSE_SLOT_REACH)?;
        }
        return Ok(([prefix, suffix, b(2, next)?, insn::TRAP], 8));
    }
    let is_absolute = insn::aa(first);
    match insn::opcd(first) {
        insn::OP_B => {
            Ok(([b(0, relative(insn::li(first), is_absolute))?, insn::TRAP, insn::TRAP, insn::TRAP], 4))
        }
        // The same condition over one instruction, relative.
        insn::OP_BC => {
            let taken = b(2, relative(insn::bd(first), is_absolute))?;
            Ok(([first & !0xfffe | 8, b(1, next)?, taken, insn::TRAP], 4))
        }
        _ => Ok(([first, b(1, next)?, insn::TRAP, insn::TRAP], 4)),
    }
}

const NOT_COPIED: Refusal =
    Refusal::unsupported("ppc64.not_copied", "the instruction cannot run elsewhere without a trap");

#[cfg(test)]
mod tests;
