//! Counts of values by size.

use super::lines::{Line, Lines, NoMemory};
use crate::sync::Relaxed;
use alloc::vec::Vec;

/// The number of buckets of a histogram by powers of two: negative, zero, and one for each power up to 2^62.
pub const LOG2_BUCKETS: usize = 65;

/// The number of buckets of a histogram by steps: negative, 0 to 15, and sixteen for each power up to 2^62.
pub const STEPS_BUCKETS: usize = 1 + 16 + 59 * 16;

/// Which values go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Bucket 0: below zero. 1: zero. 2 + n: from 2^n to 2^(n + 1) - 1.
    Log2,
    /// Bucket 0: below zero. Then 0 to 15 one by one, then sixteen steps for each power of two.
    Steps,
    /// Bucket 0: below `from`. Then `buckets` of `width` values each. The last one: all above.
    Linear {
        /// The least value of bucket 1.
        from: i64,
        /// How many values go together; 0 counts as 1.
        width: u64,
        /// The number of buckets between the first one and the last.
        buckets: usize,
    },
}

impl Scale {
    /// How many buckets there are.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Log2 => LOG2_BUCKETS,
            Self::Steps => STEPS_BUCKETS,
            Self::Linear { buckets, .. } => buckets.saturating_add(2),
        }
    }

    /// Never: a scale has at least two buckets.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        false
    }

    /// The bucket of a value.
    #[must_use]
    #[inline(always)]
    pub fn bucket(self, value: i64) -> usize {
        match self {
            Self::Log2 | Self::Steps if value < 0 => 0,
            Self::Steps if value < 16 => value as usize + 1,
            Self::Steps => {
                let octave = 63 - value.leading_zeros() as usize;
                // The highest bit and the four below it.
                let step = (value >> (octave - 4)) as usize;
                1 + 16 * (octave - 4) + step
            }
            Self::Log2 => (65 - value.leading_zeros()) as usize,
            Self::Linear { from, .. } if value < from => 0,
            Self::Linear { from, width, buckets } => {
                let steps = value.abs_diff(from).checked_div(width).unwrap_or(value.abs_diff(from));
                usize::try_from(steps).map_or(buckets, |steps| steps.min(buckets)) + 1
            }
        }
    }

    /// The least value of a bucket but the first.
    #[must_use]
    pub fn least(self, bucket: usize) -> Option<i64> {
        if bucket >= self.len() {
            return None;
        }
        let steps = i128::try_from(bucket.checked_sub(1)?).ok()?;
        match self {
            Self::Log2 if steps == 0 => Some(0),
            Self::Steps if steps < 16 => i64::try_from(steps).ok(),
            Self::Steps => {
                let (octave, step) = (u32::try_from(steps / 16).ok()? - 1, steps % 16);
                i64::try_from((16 + step) << octave).ok()
            }
            Self::Log2 => 1i64.checked_shl(u32::try_from(steps).ok()? - 1),
            Self::Linear { from, width, .. } => {
                i64::try_from(i128::from(from) + steps * i128::from(width.max(1))).ok()
            }
        }
    }
}

/// Counts of values, kept per context.
#[derive(Debug)]
pub struct Histogram {
    lines: Lines,
    scale: Scale,
}

impl Histogram {
    /// All zero, for so many contexts.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scale: Scale, contexts: usize) -> Result<Self, NoMemory> {
        Ok(Self { lines: Lines::new(contexts, scale.len())?, scale })
    }

    /// How many lines of memory one for so many contexts needs.
    #[must_use]
    pub fn lines(scale: Scale, contexts: usize) -> usize {
        Lines::needed(contexts, scale.len())
    }

    /// One in memory that others see, too; all zero is empty.
    ///
    /// # Errors
    /// There are too few lines.
    pub fn over(lines: &'static [Line], scale: Scale, contexts: usize) -> Result<Self, NoMemory> {
        Ok(Self { lines: Lines::over(lines, contexts, scale.len())?, scale })
    }

    /// Counts a value.
    #[inline(always)]
    pub fn record(&self, context: usize, value: i64) {
        if let Some(word) = self.lines.word(self.lines.row(context), self.scale.bucket(value)) {
            word.fetch_add(1, Relaxed);
        }
    }

    /// Which values go together.
    #[must_use]
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// The count of each bucket.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let of_bucket = |bucket| {
            let rows = (0..self.lines.rows()).filter_map(|row| self.lines.word(row, bucket));
            rows.fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed)))
        };
        (0..self.scale.len()).map(of_bucket).collect()
    }
}
