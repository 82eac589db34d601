//! A list of free places in a table, without a lock: signal handlers take from it.
#![allow(
    clippy::unnecessary_cast,
    clippy::useless_conversion,
    reason = "a word has an index's type where it has 32 bits"
)]

use core::sync::atomic::{AtomicU32, Ordering};

// What is exchanged at once.
#[cfg(not(target_has_atomic = "64"))]
use core::{primitive::u32 as Word, sync::atomic::AtomicU32 as AtomicWord};
#[cfg(target_has_atomic = "64")]
use core::{primitive::u64 as Word, sync::atomic::AtomicU64 as AtomicWord};

/// How many of its bits are an index; a table has less than 2^16 places where words have 32.
const INDEX_BITS: u32 = Word::BITS / 2;
const INDEX: Word = (1 << INDEX_BITS) - 1;

/// In a place that is free, 1 + the index of the next one.
pub(super) struct Link(AtomicU32);

/// The head of the list: 1 + the index of the first free place, and above it a tag that changes with every
/// exchange.
pub(super) struct Free(AtomicWord);

impl Free {
    pub(super) const fn new() -> Self {
        Self(AtomicWord::new(0))
    }

    /// Puts place `index` on the list.
    pub(super) fn push(&self, index: u32, link: &Link) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.0.store((head & INDEX) as u32, Ordering::Relaxed);
            let new = tagged(head, index + 1);
            match self.0.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes a place off the list; `link` leads from an index to the place's link.
    pub(super) fn pop(&self, link: impl Fn(u32) -> &'static Link) -> Option<u32> {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let index = ((head & INDEX) as u32).checked_sub(1)?;
            let next = link(index).0.load(Ordering::Relaxed);
            let new = tagged(head, next);
            match self.0.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }
}

/// A head with the next tag.
fn tagged(head: Word, index: u32) -> Word {
    (head >> INDEX_BITS).wrapping_add(1) << INDEX_BITS | Word::from(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_place_that_was_put_there_is_taken_first() {
        static LINKS: [Link; 3] = [const { Link(AtomicU32::new(0)) }; 3];
        let free = Free::new();
        let pop = || free.pop(|index| &LINKS[index as usize]);
        assert_eq!(pop(), None);
        (0..3).for_each(|index| free.push(index, &LINKS[index as usize]));
        assert_eq!([pop(), pop(), pop(), pop()], [Some(2), Some(1), Some(0), None]);
    }
}
