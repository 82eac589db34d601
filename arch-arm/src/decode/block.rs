//! IT blocks: may the instruction at a place be in one?
//!
//! At a hit the saved status says it. But a slot that goes on by a branch has to be made before, and a
//! branch in an IT block is conditional. So the text is asked: IT makes up to four instructions behind it
//! conditional (A8.8.54), and control comes into a block by its IT only. Where the function's start is
//! known, instructions are followed from there if there is something that looks like IT close before the
//! place; else whatever looks like one counts.

use super::data::Walk;
use crate::insn::{self, Set};
use probe_core::CodeAddr;
use probe_core::arch::Site;

/// The most bytes that IT and three instructions behind it have.
const REACH: usize = 14;

/// Whether the T32 instruction at `site` may be in an IT block.
pub(super) fn may_hold(site: &Site<'_>) -> bool {
    let at = site.at.as_usize();
    let start = site.function.map(|(start, _)| start.as_usize()).filter(|start| *start <= at);
    let most = REACH.min(at - start.unwrap_or(0)) & !1;
    let mut bytes = [0; REACH];
    // As much of that as can be read up to the place.
    let mut is_whole = |before: usize| {
        let window = CodeAddr::new(at - before);
        site.text.read(window, &mut bytes[..before]) == before
    };
    let before = (0..=most).rev().step_by(2).find(|before| is_whole(*before)).unwrap_or(0);
    let halves = bytes[..before].as_chunks::<2>().0;
    let mut is_any = false;
    for (index, half) in halves.iter().enumerate() {
        is_any |= is_in_block(u16::from_le_bytes(*half), 2 * index, before, |from| bytes.get(from..before));
    }
    if !is_any {
        return false;
    }
    let Some(start) = start else { return true };
    follow(site, start, at)
}

/// How many instructions a T32 halfword makes conditional: none, if it is not IT.
fn conditional(half: u16) -> u32 {
    match half {
        _ if !insn::T_IT.matches(u32::from(half)) || half & 0xf == 0 => 0,
        _ => 4 - half.trailing_zeros(),
    }
}

/// Whether `half`, at `offset`, is IT, and the instruction at `place` one of those that it makes conditional.
fn is_in_block<'a>(
    half: u16,
    offset: usize,
    place: usize,
    bytes: impl Fn(usize) -> Option<&'a [u8]>,
) -> bool {
    let mut at = offset + 2;
    for _ in 0..conditional(half) {
        if at == place {
            return true;
        }
        let Some(word) = bytes(at).and_then(|bytes| insn::word_at(Set::T32, bytes)) else { return false };
        at += usize::from(insn::len_bytes(Set::T32, word));
    }
    false
}

/// Whether the instruction at `at` is in a block, with every instruction followed from `start`.
fn follow(site: &Site<'_>, start: usize, at: usize) -> bool {
    let (mut walk, mut left) = (Walk::new(site.text, CodeAddr::new(start)), 0);
    while walk.at < at {
        // What cannot be followed may hold a block.
        let Some(word) = walk.step() else { return true };
        left = match conditional(word as u16) {
            count if word <= 0xffff && count != 0 => count,
            _ => left.saturating_sub(1),
        };
    }
    left != 0
}
