//! An array of words, and a sum.

use super::lines::{Line, Lines, NoMemory};
use crate::sync::{AtomicU64, Relaxed};

/// Values of a fixed number of bytes, which a program accesses by address. Words are 64 bits; an access stays
/// within one.
#[derive(Debug)]
pub struct Array {
    lines: Lines,
    len: usize,
    value_words: usize,
}

impl Array {
    /// `len` values of `value_len` bytes, all zero; rounded up to whole words.
    ///
    /// # Errors
    /// No memory.
    pub fn new(len: usize, value_len: usize) -> Result<Self, NoMemory> {
        let value_words = value_len.div_ceil(8);
        // An address has 40 bits for it.
        let words = len.checked_mul(value_words).filter(|&words| words as u64 >> 32 == 0).ok_or(NoMemory)?;
        Ok(Self { lines: Lines::new(1, words)?, len, value_words })
    }

    /// A word of all, counted from the first value's first.
    #[must_use]
    pub fn load(&self, word: usize) -> Option<u64> {
        self.word(word).map(|word| word.load(Relaxed))
    }

    /// Where a value begins, in bytes.
    pub(crate) fn offset_of(&self, index: u64) -> Option<u64> {
        let index = usize::try_from(index).ok().filter(|&index| index < self.len)?;
        Some((index * self.value_words * 8) as u64)
    }

    pub(crate) fn word(&self, word: usize) -> Option<&AtomicU64> {
        if word < self.len * self.value_words { self.lines.word(0, word) } else { None }
    }
}

/// A sum, modulo 2^64, kept per context.
#[derive(Debug)]
pub struct Counter(Lines);

impl Counter {
    /// Zero, for so many contexts.
    ///
    /// # Errors
    /// No memory.
    pub fn new(contexts: usize) -> Result<Self, NoMemory> {
        Lines::new(contexts, 1).map(Self)
    }

    /// How many lines of memory one for so many contexts needs.
    #[must_use]
    pub fn lines(contexts: usize) -> usize {
        Lines::needed(contexts, 1)
    }

    /// One in memory that others see, too; all zero is zero.
    ///
    /// # Errors
    /// There are too few lines.
    pub fn over(lines: &'static [Line], contexts: usize) -> Result<Self, NoMemory> {
        Lines::over(lines, contexts, 1).map(Self)
    }

    /// Adds to it.
    #[inline(always)]
    pub fn add(&self, context: usize, amount: u64) {
        if let Some(word) = self.0.word(self.0.row(context), 0) {
            word.fetch_add(amount, Relaxed);
        }
    }

    /// The sum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let rows = (0..self.0.rows()).filter_map(|row| self.0.word(row, 0));
        rows.fold(0, |sum, word| sum.wrapping_add(word.load(Relaxed)))
    }
}
