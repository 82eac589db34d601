//! Data in text: which of a function's bytes are no instructions?
//!
//! Compilers put the constants of a function behind its instructions, or between them, and the tables of TBB
//! and TBH behind these; its symbol covers them. A breakpoint there would change what the program loads, and
//! in T32, where instructions have two lengths, decoding through them loses the boundaries behind. So the
//! function is walked from its start, over tables, and over what loads relative to the program counter have
//! read that come before it.
//!
//! What is not found: what a function without a symbol loads, what is addressed by ADR, tables of addresses.

use super::{Access, Addressing, Offset, Plan, classify};
use crate::insn::{self, Set, bit, field};
use crate::regs::PC;
use probe_core::CodeAddr;
use probe_core::arch::{Site, Text};

/// How far behind an instruction the end of what it loads can lie: 4095 bytes, 8 that the program counter is
/// ahead, a pair.
const REACH: usize = 4096 + 8 + 8;

/// Whether the place, seen from the start of its function, is data.
pub(crate) fn is_at(site: &Site<'_>) -> bool {
    let Some((start, _)) = site.function else { return false };
    match Set::of(site.at) {
        Set::A32 => is_loaded_word(site, start),
        // The walk from the function's start is long, and few places need it.
        Set::T32 => may_be_data(site, start) && !is_boundary(site, start),
    }
}

/// How many bytes behind the instruction at the site, or the half of a constant, are data that decoding on
/// would take for instructions with other boundaries.
pub(crate) fn len_behind(site: &Site<'_>, len_bytes: usize) -> usize {
    if Set::of(site.at) == Set::A32 {
        return 0;
    }
    let mut bytes = [0; 4];
    let len = site.text.read(site.at, &mut bytes).min(4);
    let Some(word) = insn::word_at(Set::T32, &bytes[..len]) else { return 0 };
    if insn::T_TABLE.matches(word) && field(word, 16, 4) as u8 == PC {
        return table_len(site.text, site.at.wrapping_add(4), bit(word, 4));
    }
    // A constant of which the upper half alone would be the beginning of a longer instruction.
    let is_lower_half = site.at.as_usize() & 0b10 == 0 && len_bytes == 2 && len == 4;
    let upper = insn::word_at(Set::T32, &[bytes[2], bytes[3], 0, 0]).unwrap_or(0);
    if is_lower_half && insn::len_bytes(Set::T32, upper) == 4 && is_at(site) { 2 } else { 0 }
}

/// The length of a table of distances, up to the first instruction that it leads to.
fn table_len(text: &dyn Text, at: CodeAddr, of_halfwords: bool) -> usize {
    let entry_len = if of_halfwords { 2 } else { 1 };
    let (mut end, mut read) = (usize::MAX, 0);
    while read < end {
        let mut entry = [0; 2];
        if text.read(at.wrapping_add(read), &mut entry[..entry_len]) < entry_len {
            return 0;
        }
        end = end.min(2 * usize::from(u16::from_le_bytes(entry)));
        read += entry_len;
    }
    end
}

/// A32: whether an instruction before the place, in its function, loads what lies there.
fn is_loaded_word(site: &Site<'_>, start: CodeAddr) -> bool {
    let place = site.at.as_usize();
    // Words, wherever one begins.
    let mut at = start.as_usize().max(place.saturating_sub(REACH) & !3);
    let mut bytes = [0; 256];
    while at < place {
        let read = site.text.read(CodeAddr::new(at), &mut bytes).min(bytes.len()).min(place - at);
        let words = bytes[..read].as_chunks::<4>().0;
        let mut from = 0;
        while let Some(found) = words[from..].iter().position(has_counter_as_base) {
            let (word, at) = (u32::from_le_bytes(words[from + found]), at + 4 * (from + found));
            if constant_of(Set::A32, word, at).is_some_and(|(low, len)| place.wrapping_sub(low) < len) {
                return true;
            }
            from += found + 1;
        }
        if words.is_empty() {
            return false;
        }
        at += 4 * words.len();
    }
    false
}

/// Whether an A32 instruction has the program counter in the place of a base: every load relative to it does
/// (A5.2.8, A5.3, A7.6). A place in a long function asks it of a thousand words.
fn has_counter_as_base(word: &[u8; 4]) -> bool {
    word[2] & 0xf == PC
}

/// T32: whether any halfwords before the place, wherever instructions begin, would load it, or have it in
/// their table.
fn may_be_data(site: &Site<'_>, start: CodeAddr) -> bool {
    let place = site.at.as_usize();
    // A table of halfwords may be longer; no compiler makes one.
    let mut at = start.as_usize().max(place.saturating_sub(REACH) | 1);
    let mut bytes = [0; 256];
    while at < place {
        let read = site.text.read(CodeAddr::new(at), &mut bytes).min(bytes.len()).min(place - at);
        let halves = bytes[..read].as_chunks::<2>().0;
        let mut named =
            halves.iter().enumerate().filter(|(_, half)| may_name_counter(u16::from_le_bytes(**half)));
        if named.any(|(index, _)| has_as_data(site, at + 2 * index, place)) {
            return true;
        }
        if halves.is_empty() {
            return false;
        }
        at += 2 * halves.len();
    }
    false
}

/// Whether a halfword is LDR relative to the program counter, or the first of an instruction that may be.
const fn may_name_counter(half: u16) -> bool {
    half & 0xf800 == 0x4800 || half >= 0xe800 && half & 0xf == 0xf
}

/// Whether an instruction at `at`, if one begins there, has the place in what it loads, or in its table.
fn has_as_data(site: &Site<'_>, at: usize, place: usize) -> bool {
    let mut bytes = [0; 4];
    let read = site.text.read(CodeAddr::new(at), &mut bytes).min(4);
    let Some(word) = insn::word_at(Set::T32, &bytes[..read]) else { return false };
    if insn::T_TABLE.matches(word) {
        let behind = CodeAddr::new(at + 4);
        return place.wrapping_sub(at + 4) < table_len(site.text, behind, bit(word, 4));
    }
    constant_of(Set::T32, word, at).is_some_and(|(low, _)| loads(low, place))
}

/// Whether a load from `low` on, of up to two words, has the place in a word of it.
const fn loads(low: usize, place: usize) -> bool {
    (place & !0b11).wrapping_sub(low & !0b11) < 8
}

/// What may load relative to the program counter: LDR of two bytes; single loads; LDRD; VLDR (A6.2, A6.3).
const LITERALS: [insn::Class; 4] =
    [insn::T_LITERAL, insn::T_MEMORY_LITERAL, insn::T_DUAL_LITERAL, insn::T_FLOATING_LITERAL];

/// T32: whether an instruction begins at the place.
fn is_boundary(site: &Site<'_>, start: CodeAddr) -> bool {
    let (mut walk, place) = (Walk::new(site.text, start), site.at.as_usize());
    while walk.at < place {
        if walk.step().is_none() {
            return true;
        }
    }
    walk.at == place && !walk.loaded.contains(place)
}

/// The instructions of a T32 function from its start on, without the data between them.
pub(super) struct Walk<'a> {
    /// Where the next one is, or data.
    pub(super) at: usize,
    loaded: Loaded,
    window: Window<'a>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(text: &'a dyn Text, start: CodeAddr) -> Self {
        Self { at: start.as_usize(), loaded: Loaded::new(), window: Window::new(text) }
    }

    /// Goes over an instruction, and says which it is, or over data, which is zero. `None` at the end of
    /// text.
    pub(super) fn step(&mut self) -> Option<u32> {
        let at = self.at;
        let (next, word) = if self.loaded.contains(at) {
            ((at & !0b11 | 1) + 4, 0)
        } else {
            let word = self.window.word(Set::T32, at)?;
            if let Some((low, len)) = constant_of(Set::T32, word, at).filter(|&(low, _)| low > at) {
                (low..low + len).step_by(4).for_each(|at| self.loaded.add(at));
            }
            let behind = at + usize::from(insn::len_bytes(Set::T32, word));
            let is_table = insn::T_TABLE.matches(word) && field(word, 16, 4) as u8 == PC;
            let table =
                if is_table { table_len(self.window.text, CodeAddr::new(behind), bit(word, 4)) } else { 0 };
            (behind + table, word)
        };
        // The bits are for what is ahead.
        (at..next).step_by(2).for_each(|at| self.loaded.forget(at));
        self.at = next;
        Some(word)
    }
}

/// The words ahead that are loaded: a bit for each, by its address.
struct Loaded([u32; Self::WORDS / 32]);

impl Loaded {
    /// A power of two, and more than [`REACH`] has.
    const WORDS: usize = 2048;

    const fn new() -> Self {
        Self([0; Self::WORDS / 32])
    }

    const fn place(at: usize) -> (usize, u32) {
        let word = at / 4 % Self::WORDS;
        (word / 32, 1 << (word % 32))
    }

    fn add(&mut self, at: usize) {
        let (index, bit) = Self::place(at);
        self.0[index] |= bit;
    }

    fn forget(&mut self, at: usize) {
        let (index, bit) = Self::place(at);
        self.0[index] &= !bit;
    }

    fn contains(&self, at: usize) -> bool {
        let (index, bit) = Self::place(at);
        self.0[index] & bit != 0
    }
}

const _: () = assert!(Loaded::WORDS.is_power_of_two() && 4 * Loaded::WORDS > REACH + 4);

/// A piece of text, read at once.
struct Window<'a> {
    text: &'a dyn Text,
    bytes: [u8; 256],
    start: usize,
    len: usize,
}

impl<'a> Window<'a> {
    fn new(text: &'a dyn Text) -> Self {
        Self { text, bytes: [0; 256], start: 0, len: 0 }
    }

    /// The instruction at `at`.
    fn word(&mut self, set: Set, at: usize) -> Option<u32> {
        let is_here = |window: &Self| {
            (at.wrapping_sub(window.start)).checked_add(4).is_some_and(|end| end <= window.len)
        };
        if !is_here(self) {
            self.start = at;
            self.len = self.text.read(CodeAddr::new(at), &mut self.bytes).min(self.bytes.len());
        }
        insn::word_at(set, self.bytes[..self.len].get(at.wrapping_sub(self.start)..)?)
    }
}

/// Where the constant lies that the instruction `word` at `at` loads, and its length in bytes.
fn constant_of(set: Set, word: u32, at: usize) -> Option<(usize, usize)> {
    if set == Set::T32 && !LITERALS.iter().any(|class| class.matches(word)) {
        return None;
    }
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
