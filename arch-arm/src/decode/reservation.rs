//! Reservations: is a place on a path from LDREX to its STREX?
//!
//! A trap between the two clears the monitor (Linux executes CLREX, and an exception return of ARMv8 does):
//! the loop starts again, traps again, and never ends. So a place inside is refused, not only the two
//! instructions.
//!
//! The text around the place is taken as a graph of instructions: fall-through, direct branches in both
//! directions, nothing after an unconditional one. A place is inside when it can be reached from a load, and
//! a store can be reached from it, with no other load, store, CLREX or SVC on either way. The window is
//! [`REACH`] bytes to either side, cut at the function's bounds where they are known; the manual asks that
//! the two be at most 128 bytes apart (A3.4.5). Behind the place, the place itself tells where instructions
//! start. Before it, in T32, the function's start tells; if that is unknown, every halfword counts as a
//! start, which refuses more places, never fewer.

use super::{Plan, classify, direct_branch};
use crate::insn::{self, Set};
use probe_core::CodeAddr;
use probe_core::arch::Site;

/// How many bytes before and after the place are looked at.
const REACH: usize = 128;
/// Halfwords of the window: before the place, from it on, and the second half of the last instruction.
const HALVES: usize = REACH + 2;

/// What an instruction does to the reservation of its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It makes one.
    Loads,
    /// It stores if there is one, and ends it.
    Stores,
    /// It ends it.
    Ends,
    Nothing,
}

/// The instructions around a place; the index is that of a halfword.
struct Window {
    set: Set,
    /// The address of the first halfword.
    low: CodeAddr,
    /// The instruction that starts at each halfword, if one may.
    insns: [Option<u32>; HALVES],
    /// The index of the place.
    place: usize,
}

/// Where instructions may start before the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Starts {
    /// At every halfword, or word of A32.
    Anywhere,
    /// Where the function's start says, if that is known: a walk as long as the function.
    Followed,
}

/// Whether the place lies between a load and its store.
pub(super) fn is_held(site: &Site<'_>) -> bool {
    // Nearly no place has both near it, however its bytes are taken.
    let window = Window::read(site, Starts::Anywhere);
    if !window.has_both() {
        return false;
    }
    let window = if window.set == Set::T32 { Window::read(site, Starts::Followed) } else { window };
    window.has_both() && window.may_be_held()[window.place] && window.may_be_stored()[window.place]
}

impl Window {
    fn read(site: &Site<'_>, starts: Starts) -> Self {
        let set = Set::of(site.at);
        let at = site.at.as_usize();
        let (start, end) = match site.function {
            Some((start, end)) if start.as_usize() <= at && at < end.as_usize() => {
                (Some(start.as_usize()), end.as_usize())
            }
            _ => (None, usize::MAX),
        };
        let step = if set == Set::A32 { 4 } else { 2 };
        let before = read_before(site, REACH.min(at - start.unwrap_or(0)) & !(step - 1), step);
        let mut bytes = [0; HALVES * 2];
        let low = at - before;
        site.text.read(CodeAddr::new(low), &mut bytes[..before]);
        let after = (REACH + 4).min(end - at);
        let readable = before + site.text.read(site.at, &mut bytes[before..before + after]).min(after);
        let mut window = Self { set, low: CodeAddr::new(low), insns: [None; HALVES], place: before / 2 };
        let mut set_at = |index: usize| {
            let word = insn::word_at(set, bytes[..readable].get(index * 2..)?)?;
            window.insns[index] = Some(word);
            Some(index + usize::from(insn::len_bytes(set, word)) / 2)
        };
        // Behind the place, one follows from the other.
        let mut index = Some(before / 2);
        while let Some(at) = index.filter(|at| *at < HALVES) {
            index = set_at(at);
        }
        match start.filter(|_| starts == Starts::Followed) {
            None => (0..before / 2).step_by(step / 2).for_each(|index| _ = set_at(index)),
            Some(start) => {
                let mut index = first_in_window(site, set, start, low);
                while let Some(at) = index.filter(|at| *at < before / 2) {
                    index = set_at(at);
                }
            }
        }
        window
    }

    fn has_both(&self) -> bool {
        let has = |effect: Effect| self.instructions().any(|(_, word)| effect_of(self.set, word) == effect);
        has(Effect::Loads) && has(Effect::Stores)
    }

    /// For each instruction: whether a reservation may be held before it. Those that a load leads to are
    /// looked at, each once.
    fn may_be_held(&self) -> [bool; HALVES] {
        let mut held = [false; HALVES];
        let (mut waiting, mut count) = ([0; HALVES], 0);
        let mut reach = |from: usize, word: u32, waiting: &mut [usize; HALVES], count: &mut usize| {
            for next in self.successors(from, word).into_iter().flatten() {
                if !core::mem::replace(&mut held[next], true) {
                    waiting[*count] = next;
                    *count += 1;
                }
            }
        };
        for (index, word) in self.instructions() {
            if effect_of(self.set, word) == Effect::Loads {
                reach(index, word, &mut waiting, &mut count);
            }
        }
        while count != 0 {
            count -= 1;
            let index = waiting[count];
            let Some(word) = self.insns[index] else { continue };
            // Of the loads, each has been looked at.
            if effect_of(self.set, word) == Effect::Nothing {
                reach(index, word, &mut waiting, &mut count);
            }
        }
        held
    }

    /// For each instruction: whether a store may come, from it on, that belongs to a reservation made before
    /// it.
    fn may_be_stored(&self) -> [bool; HALVES] {
        let mut stored = [false; HALVES];
        let mut changed = true;
        while changed {
            changed = false;
            for (index, word) in self.instructions() {
                let reaches = match effect_of(self.set, word) {
                    Effect::Stores => true,
                    Effect::Nothing => {
                        self.successors(index, word).into_iter().flatten().any(|next| stored[next])
                    }
                    Effect::Loads | Effect::Ends => false,
                };
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
    /// A call is taken to return: its callee is not followed. What leaves by a register or a table goes on
    /// only if it is conditional; in an IT block it may be, so in T32 it always goes on.
    fn successors(&self, index: usize, word: u32) -> [Option<usize>; 2] {
        let at = self.low.wrapping_add(index * 2);
        let plan = classify(self.set, word).ok().map(|(plan, _)| plan);
        let is_call = matches!(plan, Some(Plan::Branch { links: true, .. }));
        let branch = direct_branch(self.set, word, at);
        // A branch in an IT block is conditional, too.
        let falls_through = match (branch, plan) {
            (Some((_, falls_through)), _) => falls_through,
            (None, Some(plan)) => self.set == Set::T32 || !leaves(&plan),
            (None, None) => true,
        };
        let is_inside = |index: &usize| *index < HALVES;
        let next = index + usize::from(insn::len_bytes(self.set, word)) / 2;
        let target = branch.filter(|_| !is_call).and_then(|(target, _)| {
            let distance = target.offset_from(self.low);
            usize::try_from(distance / 2).ok().filter(|_| distance >= 0)
        });
        [Some(next).filter(is_inside).filter(|_| falls_through), target.filter(is_inside)]
    }
}

/// How many of the `want` bytes before the place can be read, counted from the place.
fn read_before(site: &Site<'_>, want: usize, step: usize) -> usize {
    let can_read = |count: usize| {
        let from = site.at.wrapping_offset(-(count as isize));
        site.text.read(from, &mut [0; REACH][..count]) == count
    };
    if can_read(want) {
        return want;
    }
    (step..=want).step_by(step).take_while(|count| can_read(*count)).last().unwrap_or(0)
}

/// The index of the first instruction at or behind `low`, counted from the function's `start`.
fn first_in_window(site: &Site<'_>, set: Set, start: usize, low: usize) -> Option<usize> {
    let mut at = start;
    while at < low {
        let mut bytes = [0; 4];
        let len = site.text.read(CodeAddr::new(at), &mut bytes).min(4);
        at += usize::from(insn::len_bytes(set, insn::word_at(set, &bytes[..len])?));
    }
    Some((at - low) / 2)
}

fn effect_of(set: Set, word: u32) -> Effect {
    let (loads, stores, ends): (&[insn::Class], &[insn::Class], &[insn::Class]) = match set {
        Set::A32 => (&[insn::LOAD_EXCLUSIVE], &[insn::EXCLUSIVE], &[insn::CLREX, insn::SVC]),
        Set::T32 => (
            &[insn::T_LDREX, insn::T_LOAD_EXCLUSIVE],
            &[insn::T_STREX, insn::T_STORE_EXCLUSIVE],
            &[insn::T_CLREX, insn::T_SVC],
        ),
    };
    let is_unconditional = set == Set::A32 && insn::UNCONDITIONAL.matches(word);
    let is_one = |classes: &[insn::Class]| classes.iter().any(|class| class.matches(word));
    match () {
        () if is_unconditional => {
            if insn::CLREX.matches(word) {
                Effect::Ends
            } else {
                Effect::Nothing
            }
        }
        () if is_one(loads) => Effect::Loads,
        () if is_one(stores) => Effect::Stores,
        () if is_one(ends) => Effect::Ends,
        () => Effect::Nothing,
    }
}

/// Whether control certainly leaves by this A32 instruction: by a register, a load or a table.
fn leaves(plan: &Plan) -> bool {
    use crate::decode::{Access, Condition};
    use crate::regs::PC;
    match *plan {
        Plan::BranchRegister { condition, links, .. } => !links && condition == Condition::ALWAYS,
        Plan::Data { condition, rd, operation, .. } => {
            rd == PC && condition == Condition::ALWAYS && !matches!(operation, 0b1000..=0b1011)
        }
        Plan::Transfer { condition, access, rt, .. } => {
            access == Access::Load && rt == PC && condition == Condition::ALWAYS
        }
        Plan::Multiple { condition, loads, .. } => loads && condition == Condition::ALWAYS,
        _ => false,
    }
}
