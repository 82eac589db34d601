//! Counts of values by size.

use super::lines::{Lines, NoMemory};
use crate::sync::Relaxed;
use alloc::vec::Vec;

/// The number of buckets of a histogram by powers of two: negative, zero, and one for each power up to 2^62.
pub const LOG2_BUCKETS: usize = 65;

/// Which values go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Bucket 0: below zero. 1: zero. 2 + n: from 2^n to 2^(n + 1) - 1.
    Log2,
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
            Self::Log2 if value < 0 => 0,
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
            rows.map(|word| word.load(Relaxed)).sum()
        };
        (0..self.scale.len()).map(of_bucket).collect()
    }
}
