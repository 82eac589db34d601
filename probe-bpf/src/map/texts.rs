//! Numbers for texts, so that hits are counted by texts as they are by numbers.
//!
//! A slot is claimed and filled as one of a [`Hash`](super::Hash) is, and a text may be in several: who reads
//! takes numbers with the same text for one. Texts are the same for all contexts: once a text is
//! there, hits only read it.

use super::hash::PROBES;
use super::lines::{Line, Lines, NoMemory};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};
use alloc::vec::Vec;

const EMPTY: u64 = 0;
const CLAIMED: u64 = 1;
const READY: u64 = 2;

/// Two lines: one holds most names.
const SLOT_WORDS: usize = 32;
/// Its state, its length, its hash.
const HEAD_WORDS: usize = 3;
/// How many bytes of a text are kept, and tell it from others.
pub const MAX_TEXT: usize = 8 * (SLOT_WORDS - HEAD_WORDS);

/// Texts, each with a number from 1 on.
#[derive(Debug)]
pub struct Texts {
    lines: Lines,
    slot_mask: usize,
}

impl Texts {
    /// No text yet, and room for `capacity` of them. It has at least twice as many slots.
    ///
    /// # Errors
    /// No memory.
    pub fn new(capacity: usize) -> Result<Self, NoMemory> {
        let (slots, words) = size(capacity)?;
        Ok(Self { lines: Lines::new(1, words)?, slot_mask: slots - 1 })
    }

    /// How many lines of memory one needs; `None` where there are not so many.
    #[must_use]
    pub fn lines(capacity: usize) -> Option<usize> {
        Some(Lines::needed(1, size(capacity).ok()?.1))
    }

    /// One in memory that others see, too; all zero is empty.
    ///
    /// # Errors
    /// There are too few lines.
    pub fn over(lines: &'static [Line], capacity: usize) -> Result<Self, NoMemory> {
        let (slots, words) = size(capacity)?;
        Ok(Self { lines: Lines::over(lines, 1, words)?, slot_mask: slots - 1 })
    }

    /// The number of a text, which has one from now on; `None` where there is no room for it.
    #[inline]
    pub fn number(&self, text: &[u8]) -> Option<u64> {
        let kept = text.get(..MAX_TEXT).unwrap_or(text);
        let (len, mixed) = (text.len() as u64, mix(kept));
        for distance in 0..PROBES.min(self.slot_mask + 1) {
            let slot = (mixed as usize).wrapping_add(distance) & self.slot_mask;
            let state = self.word(slot, 0)?;
            let mut now = state.load(Acquire);
            if now == EMPTY {
                match state.compare_exchange(EMPTY, CLAIMED, Acquire, Acquire) {
                    Ok(_) => {
                        self.word(slot, 1)?.store(len, Relaxed);
                        self.word(slot, 2)?.store(mixed, Relaxed);
                        for (index, word) in words(kept).enumerate() {
                            self.word(slot, HEAD_WORDS + index)?.store(word, Relaxed);
                        }
                        state.store(READY, Release);
                        return Some(slot as u64 + 1);
                    }
                    Err(other) => now = other,
                }
            }
            if now == READY && self.has(slot, len, mixed, kept) {
                return Some(slot as u64 + 1);
            }
        }
        None
    }

    /// The beginning of a number's text, and whether there was more of it.
    #[must_use]
    pub fn text(&self, number: u64) -> Option<(Vec<u8>, bool)> {
        let slot = usize::try_from(number.checked_sub(1)?).ok().filter(|&slot| slot <= self.slot_mask)?;
        if self.word(slot, 0)?.load(Acquire) != READY {
            return None;
        }
        let len = usize::try_from(self.word(slot, 1)?.load(Relaxed)).unwrap_or(usize::MAX);
        let words = (HEAD_WORDS..SLOT_WORDS).filter_map(|index| self.word(slot, index));
        let mut text: Vec<u8> = words.flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        text.truncate(len);
        Some((text, len > MAX_TEXT))
    }

    #[inline]
    fn has(&self, slot: usize, len: u64, mixed: u64, kept: &[u8]) -> bool {
        let is = |index, word| self.word(slot, index).is_some_and(|there| there.load(Relaxed) == word);
        is(1, len)
            && is(2, mixed)
            && words(kept).enumerate().all(|(index, word)| is(HEAD_WORDS + index, word))
    }

    #[inline(always)]
    fn word(&self, slot: usize, index: usize) -> Option<&AtomicU64> {
        self.lines.word(0, slot * SLOT_WORDS + index)
    }
}

/// The slots for so many texts, and the words of all.
fn size(capacity: usize) -> Result<(usize, usize), NoMemory> {
    let slots = capacity.max(1).checked_mul(2).and_then(usize::checked_next_power_of_two).ok_or(NoMemory)?;
    Ok((slots, slots.checked_mul(SLOT_WORDS).ok_or(NoMemory)?))
}

/// A text's bytes in words; the last one is filled with zeros.
#[inline]
fn words(text: &[u8]) -> impl Iterator<Item = u64> + '_ {
    text.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        u64::from_ne_bytes(word)
    })
}

/// Spreads texts over slots.
#[inline]
fn mix(text: &[u8]) -> u64 {
    let mixed = words(text).fold(text.len() as u64, |mixed, word| {
        (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ mixed >> 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::at_operation;
    use alloc::rc::Rc;
    use alloc::vec;

    #[test]
    fn prg_1_a_text_keeps_its_number_and_its_beginning() {
        let texts = Texts::new(4).unwrap();
        let long = vec![b'x'; MAX_TEXT + 1];
        let all: [&[u8]; 5] = [b"", b"a", b"a\0", &long[..MAX_TEXT], &long];
        let numbers: Vec<u64> = all.iter().map(|text| texts.number(text).unwrap()).collect();
        for (text, number) in all.iter().zip(&numbers) {
            assert_eq!(texts.number(text), Some(*number));
            let kept = &text[..text.len().min(MAX_TEXT)];
            assert_eq!(texts.text(*number), Some((kept.to_vec(), text.len() > MAX_TEXT)));
        }
        let mut distinct = numbers;
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
        assert_eq!((texts.text(0), texts.text(9), texts.text(u64::MAX)), (None, None, None));
        (0..3_u8).for_each(|byte| assert!(texts.number(&[byte]).is_some()));
        assert_eq!(texts.number(b"one too many"), None, "eight slots");
    }

    /// Another text, or the same one, at each operation of the first hit with a text.
    #[test]
    fn prg_1_a_hit_at_any_operation_of_a_new_text_finds_its_own() {
        for inner in [&b"a text of some words"[..], b"another"] {
            let mut index = 0;
            loop {
                let texts = Rc::new(Texts::new(4).unwrap());
                let interrupting = texts.clone();
                let hit = move || {
                    let number = interrupting.number(inner).unwrap();
                    assert_eq!(interrupting.text(number), Some((inner.to_vec(), false)));
                };
                let mut number = None;
                let was_hit = at_operation(index, hit, || number = texts.number(b"a text of some words"));
                let text = texts.text(number.unwrap()).unwrap().0;
                assert_eq!(text, b"a text of some words", "operation {index}");
                if !was_hit {
                    break;
                }
                index += 1;
            }
            assert!(index >= 5, "{index}");
        }
    }
}
