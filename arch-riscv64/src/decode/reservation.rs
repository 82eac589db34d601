//! Reservations: is a place on a path from an LR to its SC?
//!
//! A trap between the two may take the reservation away (I 13.2: an SC may fail for any reason unless the
//! loop is constrained, and a trap ends that promise): the loop starts again, traps again, and never ends. So
//! a place inside is refused, not only the two instructions.
//!
//! The text around the place is taken as a graph of instructions: fall-through, direct branches in both
//! directions, nothing after an unconditional jump. A place is inside when it can be reached from an LR, and
//! an SC can be reached from it, with no other LR, SC or ECALL on either way. The window is [`REACH`] bytes
//! to either side, cut at the function's bounds where they are known: twice what a constrained loop may span
//! (I 13.3: 16 instructions). Behind the place, the place itself tells where instructions start. Before it,
//! the function's start tells; if that is unknown, every halfword counts as a start, which refuses more
//! places, never fewer.

use crate::insn;
use probe_core::CodeAddr;
use probe_core::arch::Site;

/// How many bytes before and after the place are looked at.
const REACH: usize = 128;
/// Halfwords of the window: before the place, from it on, and the second half of the last instruction.
const HALVES: usize = REACH + 2;

/// The instructions around a place; the index is that of a halfword.
struct Window {
    /// The instruction that starts at each halfword, if one may.
    insns: [Option<u32>; HALVES],
    /// The index of the place.
    place: usize,
}

/// Where instructions may start before the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Starts {
    /// At every halfword.
    Anywhere,
    /// Where the function's start says, if that is known: a walk as long as the function.
    Followed,
}

/// Whether the place lies between an LR and its SC.
pub(super) fn is_held(site: &Site<'_>) -> bool {
    // Nearly no place has both near it, however its bytes are taken.
    if !Window::read(site, Starts::Anywhere).has_both() {
        return false;
    }
    let window = Window::read(site, Starts::Followed);
    window.has_both() && window.may_be_held()[window.place] && window.may_be_stored()[window.place]
}

impl Window {
    fn read(site: &Site<'_>, starts: Starts) -> Self {
        let at = site.at.as_usize();
        let (start, end) = match site.function {
            Some((start, end)) if start.as_usize() <= at && at < end.as_usize() => {
                (Some(start.as_usize()), end.as_usize())
            }
            _ => (None, usize::MAX),
        };
        let before = read_before(site, REACH.min(at - start.unwrap_or(0)) & !1);
        let mut bytes = [0; HALVES * 2];
        let low = at - before;
        site.text.read(CodeAddr::new(low), &mut bytes[..before]);
        let after = (REACH + 4).min(end - at);
        let readable = before + site.text.read(site.at, &mut bytes[before..before + after]);
        let mut window = Self { insns: [None; HALVES], place: before / 2 };
        let mut set = |index: usize| {
            let word = insn::word_at(bytes[..readable].get(index * 2..)?)?;
            window.insns[index] = Some(word);
            Some(index + usize::from(insn::len_bytes(word)) / 2)
        };
        // Behind the place, one follows from the other.
        let mut index = Some(before / 2);
        while let Some(at) = index.filter(|at| *at < HALVES) {
            index = set(at);
        }
        match start.filter(|_| starts == Starts::Followed) {
            None => (0..before / 2).for_each(|index| _ = set(index)),
            Some(start) => {
                let mut index = first_in_window(site, start, low);
                while let Some(at) = index.filter(|at| *at < before / 2) {
                    index = set(at);
                }
            }
        }
        window
    }

    fn has_both(&self) -> bool {
        let has = |class: insn::Class| self.insns.iter().flatten().any(|word| class.matches(*word));
        has(insn::LR) && has(insn::SC)
    }

    /// For each instruction: whether a reservation may be held before it.
    fn may_be_held(&self) -> [bool; HALVES] {
        let mut held = [false; HALVES];
        let mut changed = true;
        while changed {
            changed = false;
            for (index, word) in self.instructions() {
                if insn::LR.matches(word) || held[index] && !ends_reservation(word) {
                    for next in self.successors(index, word).into_iter().flatten() {
                        changed |= !core::mem::replace(&mut held[next], true);
                    }
                }
            }
        }
        held
    }

    /// For each instruction: whether an SC may come, from it on, that belongs to a reservation made before
    /// it.
    fn may_be_stored(&self) -> [bool; HALVES] {
        let mut stored = [false; HALVES];
        let mut changed = true;
        while changed {
            changed = false;
            for (index, word) in self.instructions() {
                let reaches = insn::SC.matches(word)
                    || !insn::LR.matches(word)
                        && !ends_reservation(word)
                        && self.successors(index, word).into_iter().flatten().any(|next| stored[next]);
                if reaches {
                    changed |= !core::mem::replace(&mut stored[index], true);
                }
            }
        }
        stored
    }

    fn instructions(&self) -> impl Iterator<Item = (usize, u32)> {
        self.insns.iter().enumerate().filter_map(|(index, word)| Some((index, (*word)?)))
    }

    /// Where execution may go on inside the window: the next instruction, the target of a direct branch.
    ///
    /// A call is taken to return: its callee is not followed.
    fn successors(&self, index: usize, word: u32) -> [Option<usize>; 2] {
        let branch = insn::direct_branch(word);
        let is_call = insn::JAL.matches(word) && insn::rd(word) != 0;
        let falls_through = branch.map_or(!leaves_indirectly(word), |(_, falls_through)| falls_through);
        let is_inside = |index: &usize| *index < HALVES;
        let next = index + usize::from(insn::len_bytes(word)) / 2;
        let target = branch
            .filter(|_| !is_call)
            .and_then(|(offset, _)| index.checked_add_signed(offset as isize / 2))
            .filter(is_inside);
        [Some(next).filter(is_inside).filter(|_| falls_through), target]
    }
}

/// How many of the `want` bytes before the place can be read, counted from the place.
fn read_before(site: &Site<'_>, want: usize) -> usize {
    let can_read = |count: usize| {
        let from = site.at.wrapping_offset(-(count as isize));
        site.text.read(from, &mut [0; REACH][..count]) == count
    };
    if can_read(want) {
        return want;
    }
    (2..=want).step_by(2).take_while(|count| can_read(*count)).last().unwrap_or(0)
}

/// The index of the first instruction at or behind `low`, counted from the function's `start`.
fn first_in_window(site: &Site<'_>, start: usize, low: usize) -> Option<usize> {
    let mut at = start;
    while at < low {
        let mut bytes = [0; 4];
        let len = site.text.read(CodeAddr::new(at), &mut bytes).min(4);
        at += usize::from(insn::len_bytes(insn::word_at(&bytes[..len])?));
    }
    Some((at - low) / 2)
}

/// An SC ends every reservation (I 13.2), and a trap is none that a loop may rely on.
fn ends_reservation(word: u32) -> bool {
    insn::SC.matches(word) || insn::ECALL.matches(word)
}

/// Jumps through registers that are no calls, and what returns from a trap.
fn leaves_indirectly(word: u32) -> bool {
    insn::JALR.matches(word) && insn::rd(word) == 0
        || insn::C_JR.matches(word)
        || insn::SRET.matches(word)
        || insn::MRET.matches(word)
}
