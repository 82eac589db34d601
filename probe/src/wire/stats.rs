//! Counters and duration histograms that the handlers keep in shared memory: exact whatever the rings drop.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Steps per power of two of a histogram: a quantile is exact to 1/32.
const STEPS: usize = 16;
/// Powers of two that have steps: 2^4 to 2^40 ns (18 minutes).
const OCTAVES: usize = 36;
/// The number of buckets: values below 16 one by one, then steps, then everything longer.
pub const BUCKETS: usize = STEPS + OCTAVES * STEPS + 1;

/// One point's counters: what the first thread that hits it has counted, which it alone adds to, and what all
/// others have. Threads that take turns in writing one word spend more on that than on the hit.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Counters {
    first: Lane,
    others: Lane,
}

/// One cache line of counters.
#[repr(C, align(64))]
#[derive(Default)]
struct Lane {
    /// Of the first lane: the [`Counting`] that has it, 0 for none. Else 0.
    owner: AtomicU64,
    counts: [AtomicU64; Count::ALL],
}

/// What is counted at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Executions of the place (or returns of the function) whose handler ran.
    Hits,
    /// Hits inside a handler of another probe.
    MissedNested,
    /// Calls that found no free return instance.
    MissedPool,
    /// Calls that were followed: each returns, and is a hit then, or does not.
    Entered,
    /// Events that found no room in a ring.
    Dropped,
    /// Hits for which the condition held, where there is one.
    Passed,
    /// Hits for which it could not be told, as something could not be read.
    Unjudged,
}

impl Count {
    const ALL: usize = Self::Unjudged as usize + 1;
}

/// A thread that counts, as no other one in any process is called as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counting(u64);

impl Counting {
    /// Thread `thread` of process `process`; `None` for a number that no thread has.
    #[inline]
    pub fn new(process: u32, thread: u32) -> Option<Self> {
        (thread != 0).then_some(Self(u64::from(process) << 32 | u64::from(thread)))
    }

    /// The thread's number.
    #[inline]
    pub fn thread(self) -> u32 {
        self.0 as u32
    }
}

/// The words of a point's counters that a thread adds to.
#[derive(Clone, Copy)]
pub struct Share<'a> {
    lane: &'a Lane,
    /// Nobody else adds to them.
    is_own: bool,
}

impl Counters {
    /// The words that `thread` adds to: its own if it is the first one ever to ask. Without a name it gets
    /// those of all. One thread may not use a share inside another use: handlers do not nest.
    #[inline]
    pub fn share(&self, thread: Option<Counting>) -> Share<'_> {
        let is_own = thread.is_some_and(|Counting(thread)| {
            let owner = self.first.owner.load(Ordering::Relaxed);
            owner == thread || owner == 0 && self.claim(thread)
        });
        Share { lane: if is_own { &self.first } else { &self.others }, is_own }
    }

    #[cold]
    fn claim(&self, thread: u64) -> bool {
        self.first.owner.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// What was counted; saturated, as a program may write anything there.
    pub fn get(&self, count: Count) -> u64 {
        let [first, others] = [&self.first, &self.others]
            .map(|lane| lane.counts.get(count as usize).map_or(0, |word| word.load(Ordering::Relaxed)));
        first.saturating_add(others)
    }
}

impl Share<'_> {
    /// Counts one.
    #[inline]
    pub fn rise(self, count: Count) {
        self.add(count, 1);
    }

    /// Counts `amount`.
    #[inline]
    pub fn add(self, count: Count, amount: u64) {
        let Some(word) = self.lane.counts.get(count as usize) else { return };
        if self.is_own {
            // Nobody else writes it: no locked operation is needed.
            word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        } else {
            word.fetch_add(amount, Ordering::Relaxed);
        }
    }
}

/// A copy of [`Counters`], or the sum of several, saturated: a program may write anything there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// As [`Count::Hits`].
    pub hits: u64,
    /// As [`Count::MissedNested`].
    pub missed_nested: u64,
    /// As [`Count::MissedPool`].
    pub missed_pool: u64,
    /// Followed calls that have not returned: left by `longjmp` or unwinding, cut off by the end of their
    /// thread or process, whatever ended it, or still under way.
    pub abandoned: u64,
    /// As [`Count::Dropped`].
    pub dropped: u64,
    /// As [`Count::Passed`].
    pub passed: u64,
    /// As [`Count::Unjudged`].
    pub unjudged: u64,
}

impl Counts {
    pub(super) fn of(counters: &Counters) -> Self {
        let hits = counters.get(Count::Hits);
        Self {
            hits,
            missed_nested: counters.get(Count::MissedNested),
            missed_pool: counters.get(Count::MissedPool),
            // A `p` probe follows no calls.
            abandoned: counters.get(Count::Entered).saturating_sub(hits),
            dropped: counters.get(Count::Dropped),
            passed: counters.get(Count::Passed),
            unjudged: counters.get(Count::Unjudged),
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

    #[test]
    fn the_first_thread_counts_alone_and_the_sum_is_exact() {
        let counters = Counters::default();
        let thread = |number| Counting::new(7, number);
        assert!(counters.share(thread(1)).is_own && counters.share(thread(1)).is_own);
        let others = [thread(2), Counting::new(8, 1), Counting::new(7, 0), None];
        assert!(others.iter().all(|other| !counters.share(*other).is_own));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let counters = &counters;
                scope.spawn(move || {
                    (0..10_000).for_each(|_| counters.share(thread(number)).rise(Count::Hits));
                    counters.share(thread(number)).add(Count::Passed, 5);
                });
            }
        });
        assert_eq!((counters.get(Count::Hits), counters.get(Count::Passed)), (40_000, 20));
    }
}
