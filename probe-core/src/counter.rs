//! Counters that hits raise: exact, and readable at any time from anywhere (HIT_7, HIT_8).
//!
//! Where a word has 32 bits, 64-bit atomics are a loop at best, and on processors without vectors they go through the
//! floating-point unit, whose registers a kernel's hit path may not touch. There a counter is two words.

use crate::sync::{AcqRel, AtomicUsize, Relaxed};
#[cfg(target_pointer_width = "64")]
pub(crate) use one_word::Counter;
#[cfg(not(target_pointer_width = "64"))]
pub(crate) use two_words::Counter;

/// Counts hits, exactly: an atomic addition costs as much as half a hit by jump. So the first context has a word of its own,
/// which it alone adds to, and cannot be interrupted by itself while it does.
///
/// It also knows whether its probe is silent, so that the first context asks for both at once.
pub(crate) struct HitCounter {
    /// The address of the first context, or 0; and [`SILENT`].
    owner: AtomicUsize,
    owners: Counter,
    others: Counter,
}

/// No address of a context has this bit.
const SILENT: usize = 1;

impl HitCounter {
    /// Nothing counted yet.
    pub(crate) const fn new(is_silent: bool) -> Self {
        Self { owner: AtomicUsize::new(is_silent as usize), owners: Counter::new(), others: Counter::new() }
    }

    /// The probe has become silent.
    pub(crate) fn silence(&self) {
        self.owner.fetch_or(SILENT, AcqRel);
    }

    /// The probe is not silent any more; who makes it so at the same time is [told](HitCounter::silence) behind that.
    pub(crate) fn speak(&self) {
        self.owner.fetch_and(!SILENT, AcqRel);
    }

    /// Counts one, in a section of the context at this address; `false`: the probe is silent, or nobody is the first context
    /// yet.
    #[inline(always)]
    pub(crate) fn try_rise(&self, context: usize) -> bool {
        let owner = self.owner.load(Relaxed);
        if owner == context {
            self.owners.rise_alone();
            return true;
        }
        let is_other = owner > SILENT && owner & SILENT == 0;
        if is_other {
            self.others.rise();
        }
        is_other
    }

    /// Makes the context at this address the first one, if there has been none.
    #[inline(never)]
    pub(crate) fn claim(&self, context: usize) {
        if self.owner.load(Relaxed) == 0 {
            let _ = self.owner.compare_exchange(0, context, Relaxed, Relaxed);
        }
    }

    /// Counts one, where an atomic addition is not much of the whole.
    #[inline(always)]
    pub(crate) fn rise_anywhere(&self) {
        self.others.rise();
    }

    /// How many there have been.
    pub(crate) fn get(&self) -> u64 {
        self.owners.get() + self.others.get()
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

        /// As [`Counter::rise`], for whoever is the only one who counts at the moment.
        #[inline(always)]
        pub(crate) fn rise_alone(&self) {
            self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
        }

        /// How many there have been.
        pub(crate) fn get(&self) -> u64 {
            self.0.load(Relaxed)
        }
    }
}

#[cfg(any(test, not(target_pointer_width = "64")))]
mod two_words {
    use crate::sync::{Acquire, AtomicU32, Relaxed, Release};

    /// Counts events.
    pub(crate) struct Counter {
        /// The low half of the number.
        low: AtomicU32,
        /// How many half turns the low word has made; the last may not have been noted yet.
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
            self.risen(self.low.fetch_add(1, Relaxed));
        }

        /// As [`Counter::rise`], for whoever is the only one who counts at the moment.
        #[inline(always)]
        pub(crate) fn rise_alone(&self) {
            let before = self.low.load(Relaxed);
            self.low.store(before.wrapping_add(1), Relaxed);
            self.risen(before);
        }

        #[inline(always)]
        fn risen(&self, before: u32) {
            // Its lower bits are all ones.
            if before << 1 == u32::MAX << 1 {
                self.note_half_turn();
            }
        }

        #[cold]
        #[inline(never)]
        fn note_half_turn(&self) {
            // Release: who sees the half turn sees the low word that has made it.
            self.half_turns.fetch_add(1, Release);
        }

        /// How many there have been.
        ///
        /// Whether all half turns have been noted is told by the low word itself: its highest bit is set after an odd
        /// number of them. One at most has not been: between it and the next there are 2^31 events.
        pub(crate) fn get(&self) -> u64 {
            let noted = self.half_turns.load(Acquire);
            let low = self.low.load(Relaxed);
            let made = noted.wrapping_add((noted ^ (low >> 31)) & 1);
            u64::from(made >> 1) << 32 | u64::from(low)
        }

        /// As if `count` events had been.
        #[cfg(test)]
        fn at(count: u64) -> Self {
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
