//! Words in rows, one for each context, that share no cache line.

use crate::sync::AtomicU64;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// As many words as two cache lines of 64 bytes: processors fetch them in pairs.
const WORDS: usize = 16;

/// Words that share no cache line with others; any bits are valid.
#[repr(C, align(128))]
pub struct Line([AtomicU64; WORDS]);

/// Whose memory it is.
enum Memory {
    Own(Box<[Line]>),
    Lent(&'static [Line]),
}

/// The rows.
pub(super) struct Lines {
    lines: Memory,
    row_lines: usize,
    rows: usize,
}

/// There is not enough memory for a map; nothing has been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is not enough memory for the map")
    }
}

impl core::error::Error for NoMemory {}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("rows", &self.rows).field("row_lines", &self.row_lines).finish()
    }
}

impl Lines {
    /// At least `rows` rows of at least `words` words, all zero.
    pub(super) fn new(rows: usize, words: usize) -> Result<Self, NoMemory> {
        let (rows, row_lines) = Self::shape(rows, words);
        let len = rows.checked_mul(row_lines).ok_or(NoMemory)?;
        let mut lines = Vec::new();
        lines.try_reserve_exact(len).map_err(|_| NoMemory)?;
        lines.extend((0..len).map(|_| Line(core::array::from_fn(|_| AtomicU64::new(0)))));
        Ok(Self { lines: Memory::Own(lines.into_boxed_slice()), row_lines, rows })
    }

    /// How many lines [`Lines::new`] would take.
    pub(super) fn needed(rows: usize, words: usize) -> usize {
        let (rows, row_lines) = Self::shape(rows, words);
        rows.saturating_mul(row_lines)
    }

    /// How many rows there are, a power of two, and of how many lines: to divide by another number costs more
    /// than to count.
    fn shape(rows: usize, words: usize) -> (usize, usize) {
        let most = 1 << (usize::BITS - 1);
        (rows.clamp(1, most).next_power_of_two(), words.div_ceil(WORDS).max(1))
    }

    /// The same rows in memory that others see, too.
    pub(super) fn over(lines: &'static [Line], rows: usize, words: usize) -> Result<Self, NoMemory> {
        if lines.len() < Self::needed(rows, words) {
            return Err(NoMemory);
        }
        let (rows, row_lines) = Self::shape(rows, words);
        Ok(Self { lines: Memory::Lent(lines), row_lines, rows })
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The row of a context.
    #[inline(always)]
    pub(super) fn row(&self, context: usize) -> usize {
        context & (self.rows - 1)
    }

    /// A word of a row.
    #[inline(always)]
    pub(super) fn word(&self, row: usize, index: usize) -> Option<&AtomicU64> {
        self.words::<1>(row, index).map(|[word]| word)
    }

    /// Words of a row one after the other; `None` also where they do not lie in one line.
    #[inline(always)]
    pub(super) fn words<const N: usize>(&self, row: usize, index: usize) -> Option<&[AtomicU64; N]> {
        let line = row.checked_mul(self.row_lines)?.checked_add(index / WORDS)?;
        let lines: &[Line] = match &self.lines {
            Memory::Own(lines) => lines,
            Memory::Lent(lines) => lines,
        };
        lines.get(line)?.0.get(index % WORDS..)?.first_chunk()
    }
}
