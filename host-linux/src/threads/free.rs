//! A list of free places in a table, without a lock: signal handlers take from it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// In a place that is free, 1 + the index of the next one.
pub(super) struct Link(AtomicU32);

/// The head of the list: 1 + the index of the first free place, and above it a tag that changes with every
/// exchange.
pub(super) struct Free(AtomicU64);

impl Free {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Puts place `index` on the list.
    pub(super) fn push(&self, index: u32, link: &Link) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.0.store(head as u32, Ordering::Relaxed);
            let new = ((head >> 32) + 1) << 32 | u64::from(index + 1);
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
            let index = (head as u32).checked_sub(1)?;
            let next = link(index).0.load(Ordering::Relaxed);
            let new = ((head >> 32) + 1) << 32 | u64::from(next);
            match self.0.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }
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
