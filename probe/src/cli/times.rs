//! Durations of one kind of call: as exact as the command's other percentiles, in little memory.

use crate::wire::{Histogram, bucket_bounds, bucket_of};

/// The most buckets that all kinds of calls together have.
const MOST_BUCKETS: usize = if cfg!(target_pointer_width = "64") { 4 << 20 } else { 1 << 19 };

/// Durations, by bucket. Most calls use few buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    min_inverted: u64,
    pub(super) max_ns: u64,
    buckets: Vec<(u16, u64)>,
}

impl Times {
    /// Adds a duration; `used`: how many buckets there are in all.
    pub(super) fn add(&mut self, ns: u64, used: &mut usize) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.min_inverted = self.min_inverted.max(!ns);
        self.max_ns = self.max_ns.max(ns);
        let bucket = bucket_of(ns) as u16;
        match self.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(at) => self.buckets[at].1 += 1,
            // The nearest one has to do.
            Err(at) if *used >= MOST_BUCKETS && !self.buckets.is_empty() => {
                self.buckets[at.saturating_sub(1)].1 += 1;
            }
            Err(at) => {
                *used += 1;
                self.buckets.insert(at, (bucket, 1));
            }
        }
    }

    /// The shortest.
    pub(super) fn min_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { !self.min_inverted }
    }

    /// How many there were of each power of two, with those between that nobody took.
    pub(super) fn octaves(&self) -> Vec<[u64; 2]> {
        let mut all: Vec<[u64; 2]> = Vec::new();
        for (bucket, count) in &self.buckets {
            let from = bucket_bounds(usize::from(*bucket)).0;
            let octave = from.checked_ilog2().map_or(0, |log| 1 << log);
            while let Some([last, _]) = all.last().copied()
                && last < octave
            {
                all.push([(2 * last).max(1), 0]);
            }
            match all.last_mut() {
                Some(last) => last[1] += count,
                None => all.push([octave, *count]),
            }
        }
        all
    }

    /// The median and the 99th percentile, to 1/32.
    pub(super) fn percentiles(&self) -> [u64; 2] {
        let mut all = Histogram { count: self.count, sum_ns: self.sum_ns, ..Histogram::default() };
        (all.min_ns, all.max_ns) = (self.min_ns(), self.max_ns);
        self.buckets.iter().for_each(|(bucket, n)| all.buckets[usize::from(*bucket)] = *n);
        [0.5, 0.99].map(|q| all.quantile(q).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_a_32nd_with_few_buckets() {
        let (mut times, mut used) = (Times::default(), 0);
        (1..=10_000).for_each(|ns| times.add(ns, &mut used));
        let [median, p99] = times.percentiles();
        assert!(median.abs_diff(5_000) <= 5_000 / 32 && p99.abs_diff(9_900) <= 9_900 / 32, "{median} {p99}");
        assert_eq!((times.min_ns(), times.max_ns, times.sum_ns), (1, 10_000, 50_005_000));
        assert_eq!(used, times.buckets.len());
        used = MOST_BUCKETS;
        times.add(1 << 40, &mut used);
        assert_eq!((used, times.max_ns), (MOST_BUCKETS, 1 << 40), "no more of them");
    }
}
