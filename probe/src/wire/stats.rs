//! Counters and duration histograms that the handlers keep in shared memory: exact whatever the rings drop.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Steps per power of two of a histogram: a quantile is exact to 1/32.
const STEPS: usize = 16;
/// Powers of two that have steps: 2^4 to 2^40 ns (18 minutes).
const OCTAVES: usize = 36;
/// The number of buckets: values below 16 one by one, then steps, then everything longer.
pub const BUCKETS: usize = STEPS + OCTAVES * STEPS + 1;

/// One point's counters. One cache line.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Counters {
    /// Executions of the place (or returns of the function) whose handler ran.
    pub hits: AtomicU64,
    /// Hits inside a handler of another probe.
    pub missed_nested: AtomicU64,
    /// Calls that found no free return instance.
    pub missed_pool: AtomicU64,
    /// Calls that were followed: each returns, and is a hit then, or does not.
    pub entered: AtomicU64,
    /// Events that found no room in a ring.
    pub dropped: AtomicU64,
    /// Hits for which the condition held, where there is one.
    pub passed: AtomicU64,
    /// Hits for which it could not be told, as something could not be read.
    pub unjudged: AtomicU64,
}

/// A copy of [`Counters`], or the sum of several, saturated: a program may write anything there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// As [`Counters::hits`].
    pub hits: u64,
    /// As [`Counters::missed_nested`].
    pub missed_nested: u64,
    /// As [`Counters::missed_pool`].
    pub missed_pool: u64,
    /// Followed calls that have not returned: left by `longjmp` or unwinding, cut off by the end of their
    /// thread or process, whatever ended it, or still under way.
    pub abandoned: u64,
    /// As [`Counters::dropped`].
    pub dropped: u64,
    /// As [`Counters::passed`].
    pub passed: u64,
    /// As [`Counters::unjudged`].
    pub unjudged: u64,
}

impl Counts {
    pub(super) fn of(counters: &Counters) -> Self {
        let hits = counters.hits.load(Ordering::Relaxed);
        Self {
            hits,
            missed_nested: counters.missed_nested.load(Ordering::Relaxed),
            missed_pool: counters.missed_pool.load(Ordering::Relaxed),
            // A `p` probe follows no calls.
            abandoned: counters.entered.load(Ordering::Relaxed).saturating_sub(hits),
            dropped: counters.dropped.load(Ordering::Relaxed),
            passed: counters.passed.load(Ordering::Relaxed),
            unjudged: counters.unjudged.load(Ordering::Relaxed),
        }
    }
}

/// One return point's durations in nanoseconds.
#[repr(C, align(64))]
pub struct Durations {
    sum: AtomicU64,
    /// The shortest, inverted, so that fresh memory (zeros) means "none yet".
    min_inverted: AtomicU64,
    max: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

/// A copy of one or more [`Durations`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// How many durations were seen.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// The shortest; `u64::MAX` where there is none.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many fell into each bucket.
    pub buckets: Vec<u64>,
}

/// The bucket that a duration falls into.
#[inline]
pub const fn bucket_of(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() as usize;
    let step = (ns >> (octave - 4)) as usize - STEPS;
    let bucket = STEPS + (octave - 4) * STEPS + step;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The durations that fall into a bucket: the first, and one past the last.
pub const fn bucket_bounds(bucket: usize) -> (u64, u64) {
    if bucket < STEPS {
        return (bucket as u64, bucket as u64 + 1);
    }
    if bucket >= BUCKETS - 1 {
        return (1 << (OCTAVES + 4), u64::MAX);
    }
    let (octave, step) = ((bucket - STEPS) / STEPS, (bucket - STEPS) % STEPS);
    let width = 1 << octave;
    let from = ((STEPS + step) as u64) << octave;
    (from, from + width)
}

impl Durations {
    /// Counts one duration. Called in a handler.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.sum.fetch_add(ns, Ordering::Relaxed);
        self.min_inverted.fetch_max(!ns, Ordering::Relaxed);
        self.max.fetch_max(ns, Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Default for Durations {
    fn default() -> Self {
        Self {
            sum: AtomicU64::new(0),
            min_inverted: AtomicU64::new(0),
            max: AtomicU64::new(0),
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { count: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0, buckets: vec![0; BUCKETS] }
    }
}

impl Histogram {
    /// Adds what `durations` holds now.
    pub fn add(&mut self, durations: &Durations) {
        self.sum_ns = self.sum_ns.saturating_add(durations.sum.load(Ordering::Relaxed));
        self.min_ns = self.min_ns.min(!durations.min_inverted.load(Ordering::Relaxed));
        self.max_ns = self.max_ns.max(durations.max.load(Ordering::Relaxed));
        for (mine, theirs) in self.buckets.iter_mut().zip(&durations.buckets) {
            let n = u64::from(theirs.load(Ordering::Relaxed));
            *mine = mine.saturating_add(n);
            self.count = self.count.saturating_add(n);
        }
    }

    /// The duration below which the share `q` (0 to 1) of all durations lies, to 1/32; `None` without
    /// durations.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let rank = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0_u64;
        for (bucket, &n) in self.buckets.iter().enumerate() {
            below = n.saturating_add(below);
            if n != 0 && below >= rank {
                let (from, to) = bucket_bounds(bucket);
                let middle = from + (to - from - 1) / 2;
                return Some(middle.clamp(self.min_ns, self.max_ns.max(self.min_ns)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_durations_without_gap_or_overlap() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (from, to) = bucket_bounds(bucket);
            assert_eq!(from, next);
            assert_eq!((bucket_of(from), bucket_of(to - 1)), (bucket, bucket));
            next = to;
        }
        assert_eq!(next, u64::MAX);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_exact_to_a_32nd() {
        let durations = Durations::default();
        (1..=10_000).for_each(|ns| durations.record(ns));
        let mut histogram = Histogram::default();
        histogram.add(&durations);
        assert_eq!((histogram.count, histogram.min_ns, histogram.max_ns), (10_000, 1, 10_000));
        assert_eq!(histogram.sum_ns, 50_005_000);
        for (q, want) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.01, 100.0)] {
            let got = histogram.quantile(q).unwrap() as f64;
            assert!((got - want).abs() <= want / 32.0, "{q}: {got}");
        }
        assert_eq!(histogram.quantile(0.0), Some(1));
    }

    #[test]
    fn one_duration_is_its_own_median() {
        let durations = Durations::default();
        durations.record(1_234_567);
        let mut histogram = Histogram::default();
        histogram.add(&durations);
        assert_eq!(histogram.quantile(0.5), Some(1_234_567));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn threads_count_exactly() {
        let durations = Durations::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|ns| durations.record(ns)));
            }
        });
        let mut histogram = Histogram::default();
        histogram.add(&durations);
        assert_eq!((histogram.count, histogram.min_ns, histogram.max_ns), (40_000, 0, 9_999));
    }
}
