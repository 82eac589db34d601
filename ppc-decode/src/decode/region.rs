//! Load-reserve/store-conditional regions: where a trap would lose the reservation each time round the loop.
//!
//! Book II, "Load And Reserve and Store Conditional Instructions": a reservation is lost by the return from
//! an interrupt, among other things. A probe inside such a region makes the store fail for ever. Called at
//! registration only. Pure.

use super::Words;
use crate::Mode;
use crate::insn;
use probe_core::CodeAddr;
use probe_core::arch::Site;

/// How far a region may extend to either side of a place, in words.
const REACH_WORDS: usize = 128;
const WINDOW_WORDS: usize = 2 * REACH_WORDS;

/// Whether the place lies between a load-and-reserve and a store-conditional: it can be reached from a load
/// without passing a store, and a store can be reached from it without passing a load.
///
/// Follows the direct branches of the function (or of the surrounding text, where no symbol covers the place)
/// for [`REACH_WORDS`] to either side; calls are taken to return.
pub(super) fn is_reserved<M: Mode>(words: &Words<'_, M>, site: &Site<'_>) -> bool {
    let mut window = [0; WINDOW_WORDS];
    let (start, place) = window_start(site);
    let wanted = match site.function {
        Some((_, end)) => (end.offset_from(start).max(0) as usize / 4).min(WINDOW_WORDS),
        None => WINDOW_WORDS,
    };
    let filled = words.fill(start, &mut window[..wanted]);
    let flow = Flow { words: &window[..filled] };
    place < filled
        && flow.has(Reservation::Load)
        && flow.has(Reservation::Store)
        && flow.reaches_a_store(place)
        && flow.is_reached_from_a_load(place)
}

/// The address of the window's first word and the place's index in it.
fn window_start(site: &Site<'_>) -> (CodeAddr, usize) {
    let before = match site.function {
        Some((start, _)) if start <= site.at => (site.at.offset_from(start) as usize / 4).min(REACH_WORDS),
        _ => REACH_WORDS.min(site.at.as_usize() / 4),
    };
    (site.at.wrapping_offset(-(before as isize * 4)), before)
}

/// A load-and-reserve or store-conditional instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reservation {
    Load,
    Store,
}

fn reservation(word: u32) -> Option<Reservation> {
    if insn::opcd(word) != insn::OP_X {
        return None;
    }
    match insn::xo(word) {
        20 | 52 | 84 | 116 | 276 => Some(Reservation::Load),
        150 | 182 | 214 | 694 | 726 => Some(Reservation::Store),
        _ => None,
    }
}

/// The control flow inside a window of text.
struct Flow<'a> {
    words: &'a [u32],
}

impl Flow<'_> {
    /// Whether there is such an instruction at all: mostly there is none, and the walks need not be made.
    fn has(&self, wanted: Reservation) -> bool {
        self.words.iter().any(|word| reservation(*word) == Some(wanted))
    }

    /// Whether a store-conditional is reachable from `place` without passing a load-and-reserve.
    fn reaches_a_store(&self, place: usize) -> bool {
        let mut walk = Walk::default();
        walk.push(place);
        while let Some(at) = walk.pop() {
            match reservation(self.words[at]) {
                Some(Reservation::Store) => return true,
                Some(Reservation::Load) => {}
                None => self.successors(at, &mut walk),
            }
        }
        false
    }

    /// Whether `place` is reachable from a load-and-reserve without passing a store-conditional.
    fn is_reached_from_a_load(&self, place: usize) -> bool {
        let mut walk = Walk::default();
        for (at, &word) in self.words.iter().enumerate() {
            if reservation(word) == Some(Reservation::Load) {
                self.successors(at, &mut walk);
            }
        }
        while let Some(at) = walk.pop() {
            if at == place {
                return true;
            }
            if reservation(self.words[at]).is_none() {
                self.successors(at, &mut walk);
            }
        }
        false
    }

    /// Adds what may be executed after the instruction at index `at`.
    fn successors(&self, at: usize, walk: &mut Walk) {
        let word = self.words[at];
        let bo = insn::rt(word);
        let (goes_on, target) = match insn::opcd(word) {
            insn::OP_B if insn::lk(word) => (true, None),
            insn::OP_B => (false, self.target(at, insn::li(word), word)),
            insn::OP_BC if insn::lk(word) => (true, None),
            insn::OP_BC => (!insn::bo_is_always(bo), self.target(at, insn::bd(word), word)),
            insn::OP_XL if matches!(insn::xo(word), insn::XO_BCLR | insn::XO_BCCTR | insn::XO_BCTAR) => {
                (insn::lk(word) || !insn::bo_is_always(bo), None)
            }
            _ => (true, None),
        };
        let len = if insn::opcd(word) == insn::OP_PREFIX { 2 } else { 1 };
        if goes_on && at + len < self.words.len() {
            walk.push(at + len);
        }
        if let Some(target) = target {
            walk.push(target);
        }
    }

    /// The index of a relative branch's target, where it lies in the window.
    fn target(&self, at: usize, offset: i64, word: u32) -> Option<usize> {
        if insn::aa(word) {
            return None;
        }
        let target = at as i64 + offset / 4;
        usize::try_from(target).ok().filter(|&index| index < self.words.len())
    }
}

/// Instructions still to be visited; each is visited once.
struct Walk {
    seen: [u64; WINDOW_WORDS / 64],
    stack: [u16; WINDOW_WORDS],
    depth: usize,
}

impl Default for Walk {
    fn default() -> Self {
        Self { seen: [0; WINDOW_WORDS / 64], stack: [0; WINDOW_WORDS], depth: 0 }
    }
}

impl Walk {
    fn push(&mut self, at: usize) {
        let (word, bit) = (at / 64, 1 << (at % 64));
        if self.seen[word] & bit == 0 {
            self.seen[word] |= bit;
            self.stack[self.depth] = at as u16;
            self.depth += 1;
        }
    }

    fn pop(&mut self) -> Option<usize> {
        self.depth = self.depth.checked_sub(1)?;
        Some(usize::from(self.stack[self.depth]))
    }
}
