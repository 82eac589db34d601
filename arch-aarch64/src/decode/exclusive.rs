//! Load/store-exclusive regions: is a place on a path from an exclusive load to its store?
//!
//! A trap between the two clears the exclusive monitor (DDI 0487J.a B2.12.5): the store fails, the loop
//! starts again, traps again, and never ends. So a place inside is refused, not only the two instructions.
//!
//! The text around the place is taken as a graph of instructions: fall-through, direct branches in both
//! directions, nothing after an unconditional jump or a return. A place is inside when it can be reached
//! from an exclusive load, and a store-exclusive can be reached from it, with no other exclusive load, store,
//! CLREX or exception on either way. The window is [`REACH`] instructions to either side, cut at the
//! function's bounds where they are known: twice what the architecture allows a region to span (B2.12.5:
//! "no more than 128 bytes"). A region that leaves the window through a branch and comes back is not seen.

use crate::insn::{self, Monitor};
use probe_core::CodeAddr;
use probe_core::arch::Site;

/// How many instructions before and after the place are looked at.
const REACH: usize = 64;
const WINDOW: usize = 2 * REACH + 1;

/// The instructions around a place.
struct Window {
    words: [u32; WINDOW],
    len: usize,
    /// The index of the place.
    place: usize,
}

/// Whether the place lies between an exclusive load and its store.
pub(super) fn is_inside_region(site: &Site<'_>) -> bool {
    let window = Window::read(site);
    let has = |monitor| window.words().iter().any(|word| insn::monitor(*word) == monitor);
    has(Monitor::Open)
        && has(Monitor::Store)
        && window.may_be_open()[window.place]
        && window.may_be_stored()[window.place]
}

impl Window {
    fn read(site: &Site<'_>) -> Self {
        let at = site.at.as_usize();
        let (start, end) = match site.function {
            Some((start, end)) if start.as_usize() <= at && at < end.as_usize() => {
                (start.as_usize(), end.as_usize())
            }
            _ => (0, usize::MAX),
        };
        let before = REACH.min((at - start) / 4);
        let after = REACH.min((end - at).saturating_sub(4) / 4);
        let mut bytes = [0; WINDOW * 4];
        let (head, tail) = bytes.split_at_mut(REACH * 4);
        let read_before = read_before(site, head, before);
        let read_from = site.text.read(site.at, &mut tail[..(after + 1) * 4]) / 4;
        let mut window = Self { words: [0; WINDOW], len: read_before + read_from, place: read_before };
        let kept = bytes[(REACH - read_before) * 4..].chunks_exact(4);
        for (word, bytes) in window.words.iter_mut().zip(kept).take(window.len) {
            *word = insn::word_at(bytes).unwrap_or(0);
        }
        if read_from == 0 {
            // The place itself cannot be read: nothing is known, and `decode` has refused it already.
            window.len = 0;
        }
        window
    }

    fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }

    /// For each instruction: whether the monitor may be open before it.
    fn may_be_open(&self) -> [bool; WINDOW] {
        let mut open = [false; WINDOW];
        let mut changed = true;
        while changed {
            changed = false;
            for (index, word) in self.words().iter().enumerate() {
                let open_after = match insn::monitor(*word) {
                    Monitor::Open => true,
                    Monitor::Store | Monitor::Clear => false,
                    Monitor::Untouched => open[index] && !takes_exception(*word),
                };
                if !open_after {
                    continue;
                }
                for next in self.successors(index, *word).into_iter().flatten() {
                    changed |= !core::mem::replace(&mut open[next], true);
                }
            }
        }
        open
    }

    /// For each instruction: whether a store-exclusive may come, from it on, that belongs to a monitor opened
    /// before it.
    fn may_be_stored(&self) -> [bool; WINDOW] {
        let mut stored = [false; WINDOW];
        let mut changed = true;
        while changed {
            changed = false;
            for (index, word) in self.words().iter().enumerate().rev() {
                let reaches = match insn::monitor(*word) {
                    Monitor::Store => true,
                    Monitor::Open | Monitor::Clear => false,
                    Monitor::Untouched => {
                        !takes_exception(*word)
                            && self.successors(index, *word).into_iter().flatten().any(|next| stored[next])
                    }
                };
                if reaches {
                    changed |= !core::mem::replace(&mut stored[index], true);
                }
            }
        }
        stored
    }

    /// Where execution may go on inside the window: the next instruction, the target of a direct branch.
    ///
    /// A call is taken to return: its callee is not followed.
    fn successors(&self, index: usize, word: u32) -> [Option<usize>; 2] {
        let falls_through = !(insn::B.matches(word) || leaves_indirectly(word));
        let next = (falls_through && index + 1 < self.len).then_some(index + 1);
        let target = insn::direct_branch(word)
            .filter(|_| !insn::BL.matches(word))
            .and_then(|offset| index.checked_add_signed(offset as isize / 4))
            .filter(|target| *target < self.len);
        [next, target]
    }
}

/// Reads up to `want` instructions before the place to the end of `head`; returns how many, counted from the
/// place.
fn read_before(site: &Site<'_>, head: &mut [u8], want: usize) -> usize {
    let from = head.len() - want * 4;
    if site.text.read(back(site.at, want), &mut head[from..]) == want * 4 {
        return want;
    }
    // Readable memory begins somewhere in between.
    let mut count = 0;
    while count < want {
        let low = head.len() - (count + 1) * 4;
        if site.text.read(back(site.at, count + 1), &mut head[low..low + 4]) != 4 {
            break;
        }
        count += 1;
    }
    count
}

fn back(at: CodeAddr, instructions: usize) -> CodeAddr {
    at.wrapping_offset(-((instructions * 4) as isize))
}

/// An exception and its return clear the monitor (B2.12.2).
fn takes_exception(word: u32) -> bool {
    insn::SVC.matches(word)
        || insn::HVC.matches(word)
        || insn::SMC.matches(word)
        || insn::BRK.matches(word)
        || insn::HLT.matches(word)
        || insn::UDF.matches(word)
}

/// `br`, `ret`, `eret` and their authenticated forms: anything of their group but the calls.
fn leaves_indirectly(word: u32) -> bool {
    const UNCONDITIONAL_REGISTER: u32 = 0xd600_0000;
    let is_call = insn::BLR.matches(word) || insn::BLRAZ.matches(word) || insn::BLRA.matches(word);
    word & 0xfe00_0000 == UNCONDITIONAL_REGISTER && !is_call
}
