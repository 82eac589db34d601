//! Constants in text: is a place one that an instruction of its function loads?
//!
//! Compilers put the constants of a function behind its instructions, or between them, and its symbol covers
//! them. A breakpoint there would change what the program loads. So a place is refused that a load relative
//! to the program counter reads, of those that come before it in the function.
//!
//! What is not found: what a function without a symbol loads, and tables of jumps.

use super::{Access, Addressing, Offset, Plan, classify};
use crate::insn::{self, Set, bit, field};
use crate::regs::PC;
use probe_core::CodeAddr;
use probe_core::arch::Site;

/// How far before a word of A32 the load of it can lie: 4095 bytes, and 8 that the program counter is ahead.
const A32_REACH: usize = 4096 + 8;

/// Whether an instruction before the place, in its function, loads what lies there.
pub(super) fn is_loaded(site: &Site<'_>) -> bool {
    let Some((start, _)) = site.function else { return false };
    let (set, place) = (Set::of(site.at), site.at.as_usize());
    let mut at = start.as_usize();
    if set == Set::A32 {
        // Words, wherever one begins.
        at = at.max(place.saturating_sub(A32_REACH) & !3);
    }
    let mut block = [0; 256];
    while at < place {
        let readable = site.text.read(CodeAddr::new(at), &mut block).min(block.len());
        let mut from = 0;
        while let Some(word) = block[..readable].get(from..).and_then(|rest| insn::word_at(set, rest)) {
            if at + from >= place {
                break;
            }
            if constant_of(set, word, at + from)
                .is_some_and(|(low, len)| (place & !1).wrapping_sub(low) < len)
            {
                return true;
            }
            from += usize::from(insn::len_bytes(set, word));
        }
        if from == 0 {
            return false;
        }
        at += from;
    }
    false
}

/// Where the constant lies that the instruction `word` at `at` loads, and its length in bytes.
fn constant_of(set: Set, word: u32, at: usize) -> Option<(usize, usize)> {
    let base = (at & !1).wrapping_add(set.ahead() as usize) & !3;
    let (offset, len) = match classify(set, word).ok()?.0 {
        Plan::Transfer {
            access,
            rn: PC,
            addressing: Addressing::Offset,
            offset: Offset::Immediate(offset),
            ..
        } => (isize::from(offset), len_of(access)?),
        // VLDR.
        Plan::Borrow if bit(word, 20) => {
            let distance = 4 * field(word, 0, 8) as isize;
            (if bit(word, 23) { distance } else { -distance }, if bit(word, 8) { 8 } else { 4 })
        }
        _ => return None,
    };
    Some((base.wrapping_add_signed(offset), len))
}

/// How many bytes a load reads; `None` for a store.
fn len_of(access: Access) -> Option<usize> {
    match access {
        Access::LoadPair => Some(8),
        Access::Load => Some(4),
        Access::LoadHalf | Access::LoadSignedHalf => Some(2),
        Access::LoadByte | Access::LoadSignedByte => Some(1),
        _ => None,
    }
}
