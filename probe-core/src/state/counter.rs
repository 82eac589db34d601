//! Counters that hits raise: exact, and readable at any time from anywhere (HIT_7, HIT_8).
//!
//! On 32-bit processors a counter is two words. A 64-bit atomic would be a loop at best; without vectors it
//! goes through the floating-point unit, whose registers a kernel's hit path may not touch.

#![allow(unexpected_cfgs, reason = "`probe_loom` is set by tests/models alone")]

use crate::state::owner::{FirstOwner, Identity, Ownership};
use crate::sync::{Acquire, AtomicUsize, Relaxed, Release};
use core::ptr;
#[cfg(target_pointer_width = "64")]
pub(crate) use one_word::Counter;
#[cfg(not(target_pointer_width = "64"))]
pub(crate) use two_words::Counter;
#[cfg(probe_loom)]
pub(crate) use two_words::Counter as TwoWords;

/// Counts hits, exactly. The first context has a word of its own, which it alone adds to. When a second one
/// comes, each adds to its own [`Shares`]: contexts that take turns in writing one word spend more on that
/// than on the hit.
pub(crate) struct HitCounter {
    owner: FirstOwner,
    owners: Counter,
    others: Counter,
}

/// The counter of no probe: nothing is ever counted with it.
pub(crate) static NOBODY: HitCounter = HitCounter::new(true);

impl HitCounter {
    /// Nothing counted yet.
    pub(crate) const fn new(is_silent: bool) -> Self {
        Self { owner: FirstOwner::nobody(is_silent), owners: Counter::new(), others: Counter::new() }
    }

    /// The probe has become silent.
    pub(crate) fn silence(&self) {
        self.owner.silence();
    }

    /// The probe is not silent any more.
    pub(crate) fn speak(&self) {
        self.owner.speak();
    }

    /// Counts one, in a section of this context; `false`: the context is not the first one, or the probe is
    /// silent.
    #[inline(always)]
    pub(crate) fn try_rise_alone(&self, context: &impl Identity) -> bool {
        let is_first = self.owner.is_open_to(context);
        if is_first {
            self.owners.rise_alone();
        }
        is_first
    }

    /// As [`HitCounter::try_rise_alone`], once a second context has come; `false` if none has, or the probe
    /// is silent, or the context has no share yet.
    #[inline(always)]
    pub(crate) fn try_rise_shared(&self, context: &impl Identity, shares: &Shares) -> bool {
        if !self.owner.is_open_to_all() {
            return false;
        }
        let address = context.address();
        let (whose, share) = shares.of(context, self);
        let (whose, probe) = (whose.load(Relaxed), share.probe.load(Relaxed));
        if probe == self.address() && whose == address {
            share.hits.rise_alone();
        } else if probe == 0 && (whose == 0 || whose == address) {
            return false;
        } else {
            self.others.rise();
        }
        true
    }

    /// Gives this context a share for its next hit, if one is free.
    #[inline(never)]
    pub(crate) fn claim(&self, context: &impl Identity, shares: &Shares) {
        if self.owner.claim(context) == Ownership::Shared {
            shares.claim(context, self);
        }
    }

    /// Counts one, where an atomic addition costs little in comparison.
    #[inline(always)]
    pub(crate) fn rise_anywhere(&self) {
        self.others.rise();
    }

    /// How many there have been.
    pub(crate) fn get(&self, shares: &Shares) -> u64 {
        let shared = shares.column(self).map(|share| share.hits.get()).sum::<u64>();
        self.owners.get() + self.others.get() + shared
    }

    /// Gives back the shares that [`HitCounter::claim`] has given: nobody counts any more.
    pub(crate) fn end(&self, shares: &Shares) {
        if self.owner.is_shared() {
            shares.column(self).for_each(Share::free);
        }
    }

    /// What identifies it.
    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

/// The most contexts that count hits of shared probes each by itself.
const ROWS: usize = 32;
/// How many such probes.
const COLUMNS: usize = 16;

/// The shares of contexts that hit the same probes: for each context a row, in cache lines of its own.
pub(crate) struct Shares {
    /// The address of the context that each row belongs to, for good; 0 while the row is free.
    owners: [AtomicUsize; ROWS],
    rows: [Row; ROWS],
}

#[repr(align(64))]
struct Row([Share; COLUMNS]);

/// What one context has counted for one probe.
struct Share {
    /// The address of the probe's counter; 0: free.
    probe: AtomicUsize,
    hits: Counter,
}

impl Share {
    const fn new() -> Self {
        Self { probe: AtomicUsize::new(0), hits: Counter::new() }
    }

    /// Nobody counts with it any more.
    fn free(&self) {
        self.hits.clear();
        // Release: it is 0 for its next user.
        self.probe.store(0, Release);
    }
}

impl Shares {
    /// All free.
    pub(crate) const fn new() -> Self {
        Self {
            owners: [const { AtomicUsize::new(0) }; ROWS],
            rows: [const { Row([const { Share::new() }; COLUMNS]) }; ROWS],
        }
    }

    /// The share that this context and this probe may count with, and the owner of its row, to be compared
    /// with them.
    #[inline(always)]
    fn of(&self, context: &impl Identity, probe: &HitCounter) -> (&AtomicUsize, &Share) {
        let row = context.number() % ROWS;
        (&self.owners[row], &self.rows[row].0[probe.address() / 64 % COLUMNS])
    }

    /// Takes one for a context and a probe.
    fn claim(&self, context: &impl Identity, probe: &HitCounter) {
        let (whose, share) = self.of(context, probe);
        let _ = whose.compare_exchange(0, context.address(), Relaxed, Relaxed);
        if whose.load(Relaxed) == context.address() {
            // Acquire: the counts for another probe have been cleared.
            let _ = share.probe.compare_exchange(0, probe.address(), Acquire, Relaxed);
        }
    }

    /// All that count for a probe.
    fn column(&self, probe: &HitCounter) -> impl Iterator<Item = &Share> {
        let (address, column) = (probe.address(), probe.address() / 64 % COLUMNS);
        let shares = self.rows.iter().map(move |row| &row.0[column]);
        shares.filter(move |share| share.probe.load(Relaxed) == address)
    }
}

#[cfg(target_pointer_width = "64")]
mod one_word {
    use crate::sync::{AtomicU64, Relaxed};

    /// Counts events.
    pub(crate) struct Counter(AtomicU64);

    impl Counter {
        /// Nothing counted yet.
        pub(crate) const fn new() -> Self {
            Self(AtomicU64::new(0))
        }

        /// Counts one.
        #[inline(always)]
        pub(crate) fn rise(&self) {
            self.0.fetch_add(1, Relaxed);
        }

        /// As [`Counter::rise`], for a context that is the only one to count at the moment.
        #[inline(always)]
        pub(crate) fn rise_alone(&self) {
            self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
        }

        /// How many there have been.
        #[inline]
        pub(crate) fn get(&self) -> u64 {
            self.0.load(Relaxed)
        }

        /// Begins anew, where nobody counts.
        pub(crate) fn clear(&self) {
            self.0.store(0, Relaxed);
        }
    }
}

#[cfg(any(test, probe_loom, not(target_pointer_width = "64")))]
mod two_words {
    #![cfg_attr(target_pointer_width = "64", allow(dead_code, reason = "for tests and models"))]

    use crate::sync::{Acquire, AtomicU32, Relaxed, Release};

    /// Counts events.
    pub(crate) struct Counter {
        /// The low half of the number.
        low: AtomicU32,
        /// The number of half turns that the low word has made; the last may not have been noted yet.
        half_turns: AtomicU32,
    }

    impl Counter {
        /// Nothing counted yet.
        pub(crate) const fn new() -> Self {
            Self { low: AtomicU32::new(0), half_turns: AtomicU32::new(0) }
        }

        /// Counts one.
        #[inline(always)]
        pub(crate) fn rise(&self) {
            self.risen(self.low.fetch_add(1, Relaxed).wrapping_add(1));
        }

        /// As [`Counter::rise`], for a context that is the only one to count at the moment.
        #[inline(always)]
        pub(crate) fn rise_alone(&self) {
            // Where memory can be added to, that is one instruction.
            self.low.store(self.low.load(Relaxed).wrapping_add(1), Relaxed);
            self.risen(self.low.load(Relaxed));
        }

        #[inline(always)]
        fn risen(&self, low: u32) {
            if low << 1 == 0 {
                self.note_half_turn();
            }
        }

        #[cold]
        #[inline(never)]
        fn note_half_turn(&self) {
            // Release: a reader that sees the half turn sees the low word that has made it.
            self.half_turns.fetch_add(1, Release);
        }

        /// The count.
        ///
        /// The low word itself tells whether all half turns have been noted: its highest bit is set after an
        /// odd number of them. At most one has not been noted: 2^31 events lie between it and the next.
        pub(crate) fn get(&self) -> u64 {
            let noted = self.half_turns.load(Acquire);
            let low = self.low.load(Relaxed);
            let made = noted.wrapping_add((noted ^ (low >> 31)) & 1);
            u64::from(made >> 1) << 32 | u64::from(low)
        }

        /// Begins anew, where nobody counts.
        pub(crate) fn clear(&self) {
            self.low.store(0, Relaxed);
            self.half_turns.store(0, Relaxed);
        }

        /// As if `count` events had been.
        #[cfg(any(test, probe_loom))]
        pub(crate) fn at(count: u64) -> Self {
            let (counter, low) = (Self::new(), count as u32);
            counter.low.store(low, Relaxed);
            counter.half_turns.store(((count >> 32) as u32) << 1 | low >> 31, Relaxed);
            counter
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const HALF: u32 = 1 << 31;

        #[test]
        fn a_counter_of_two_words_goes_through_half_and_whole_turns() {
            for rise in [Counter::rise as fn(&Counter), Counter::rise_alone] {
                for around in [1_u64, 1 << 31, 1 << 32, 3 << 31, 1 << 33, (1 << 40) + (1 << 31), 1 << 62] {
                    let counter = Counter::at(around - 1);
                    for count in around - 1..around + 3 {
                        assert_eq!(counter.get(), count);
                        rise(&counter);
                    }
                    counter.clear();
                    assert_eq!(counter.get(), 0);
                }
            }
        }

        #[test]
        fn a_half_turn_that_is_not_noted_yet_is_counted() {
            for (low, half_turns, count) in [
                (HALF, 0, 1_u64 << 31),
                (HALF + 5, 6, (3 << 32) + (1 << 31) + 5),
                (0, 1, 1 << 32),
                (7, 3, (2 << 32) + 7),
            ] {
                let counter = Counter { low: AtomicU32::new(low), half_turns: AtomicU32::new(half_turns) };
                assert_eq!(counter.get(), count);
            }
        }
    }
}
