//! What has been found out about places: a table that hits read and write without a lock.
//!
//! A line says whose it is before and after it is read; who writes it takes its name away first. A line that
//! somebody else is writing, or that has another place's rules, is as good as none.

use super::rules::{MOST_SAVED, Rules};
use core::sync::atomic::{AtomicU64, Ordering, fence};

const WORDS: usize = 2 + MOST_SAVED / 4;
/// A power of two.
const LINES: usize = 1 << 11;
/// The name of a line that is being written.
const BUSY: u64 = u64::MAX;
/// Addresses of programs have fewer bits, but for programs that ask for more.
const PLACE_BITS: u32 = 48;

#[derive(Debug)]
#[repr(C, align(64))]
struct Line([AtomicU64; WORDS]);

/// Rules by place.
#[derive(Debug)]
pub(super) struct Known {
    lines: [Line; LINES],
}

/// The name of a place's line; never 0, which is nobody's.
fn name(place: usize, generation: u32) -> Option<u64> {
    let place = place as u64;
    // The highest is never set: no name is BUSY.
    let generation = u64::from(generation & 0x7fff);
    (place != 0 && place >> PLACE_BITS == 0).then_some(place | generation << PLACE_BITS)
}

impl Known {
    pub(super) const fn new() -> Self {
        Self { lines: [const { Line([const { AtomicU64::new(0) }; WORDS]) }; LINES] }
    }

    fn line(&self, name: u64) -> Option<&Line> {
        let mixed = (name & ((1 << PLACE_BITS) - 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.lines.get(mixed as usize % LINES)
    }

    /// The rules of a place, if they are there.
    #[inline]
    pub(super) fn get(&self, place: usize, generation: u32) -> Option<Rules> {
        let name = name(place, generation)?;
        let Line([owner, head, saved @ ..]) = self.line(name)?;
        if owner.load(Ordering::Acquire) != name {
            return None;
        }
        let head = head.load(Ordering::Relaxed);
        let mut rules = Rules {
            offset: head as i32,
            register: (head >> 32) as u16,
            is_indirect: head >> 48 & 1 != 0,
            is_signal: head >> 49 & 1 != 0,
            is_outermost: head >> 50 & 1 != 0,
            saved: [0; MOST_SAVED],
        };
        let (four, _) = rules.saved.as_chunks_mut::<4>();
        for (four, word) in four.iter_mut().zip(saved) {
            let word = word.load(Ordering::Relaxed);
            *four = [word as i16, (word >> 16) as i16, (word >> 32) as i16, (word >> 48) as i16];
        }
        fence(Ordering::Acquire);
        (owner.load(Ordering::Relaxed) == name).then_some(rules)
    }

    /// Keeps the rules of a place, unless another hit is about to use its line.
    pub(super) fn set(&self, place: usize, generation: u32, rules: &Rules) {
        let Some((name, line)) = name(place, generation).and_then(|name| Some((name, self.line(name)?)))
        else {
            return;
        };
        let Line([owner, head, saved @ ..]) = line;
        let before = owner.load(Ordering::Relaxed);
        let take = || owner.compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed);
        if before == BUSY || take().is_err() {
            return;
        }
        fence(Ordering::Release);
        let flags = [rules.is_indirect, rules.is_signal, rules.is_outermost];
        let flags = flags.iter().rev().fold(0, |all, flag| all << 1 | u64::from(*flag));
        let low = u64::from(rules.offset.cast_unsigned()) | u64::from(rules.register) << 32;
        head.store(low | flags << 48, Ordering::Relaxed);
        let (four, _) = rules.saved.as_chunks::<4>();
        for ([a, b, c, d], word) in four.iter().zip(saved) {
            let half =
                |low: i16, high: i16| u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 16;
            word.store(half(*a, *b) | half(*c, *d) << 32, Ordering::Relaxed);
        }
        owner.store(name, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static KNOWN: Known = Known::new();

    fn rules(seed: i16) -> Rules {
        Rules {
            register: 7,
            offset: i32::from(seed) * -1000,
            is_indirect: seed & 1 != 0,
            is_signal: seed & 2 != 0,
            is_outermost: seed & 4 != 0,
            saved: core::array::from_fn(|index| seed.wrapping_mul(331).wrapping_add(index as i16)),
        }
    }

    #[test]
    fn rules_are_what_they_were() {
        for seed in -40..40 {
            let place = 0x7fff_0000_1000_usize.wrapping_add_signed(isize::from(seed) * 16);
            KNOWN.set(place, 3, &rules(seed));
            assert_eq!(KNOWN.get(place, 3), Some(rules(seed)));
            assert_eq!((KNOWN.get(place + 1, 3), KNOWN.get(place, 4)), (None, None));
        }
        KNOWN.set(1 << 60, 0, &rules(1));
        assert_eq!(KNOWN.get(1 << 60, 0), None, "there is no room for its bits");
    }
}
