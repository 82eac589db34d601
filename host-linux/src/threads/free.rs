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

/// The most places of a table.
pub(super) const PLACES: usize = if cfg!(target_pointer_width = "64") { 64 << 10 } else { 4 << 10 };

/// How many of its bits are an index, or 1 + one: no more than are needed, as the others are the tag's.
const INDEX_BITS: u32 = PLACES.ilog2() + 1;
const INDEX: Word = (1 << INDEX_BITS) - 1;
const _: () = assert!(PLACES <= INDEX as usize && Word::BITS - INDEX_BITS >= 19, "an index, and a tag");

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

    /// Handlers that interrupt taking a place bring its head back with the last tag: they should be many.
    #[test]
    fn what_is_no_index_is_the_tag() {
        let last = PLACES as u32;
        let tags = 1 << (Word::BITS - last.ilog2() - 1);
        assert_eq!(tagged(0, last) & INDEX, Word::from(last));
        assert_eq!(Word::MAX / (tagged(0, last) - Word::from(last)), tags - 1);
    }

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
