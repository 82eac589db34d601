//! What a mapped agent has mapped, so that whoever has mapped it can take everything away again.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

/// The length of a page where agents are mapped, on x86-64.
const PAGE: usize = 4096;

/// How many mappings are known. More are left behind.
pub const MOST: usize = 16 << 10;

/// A mapping: its first address and one past its last; both 0, or equal, if there is none.
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    /// The first address.
    pub start: AtomicUsize,
    /// One past the last.
    pub end: AtomicUsize,
}

/// All of them. For who reads the process's memory.
#[repr(C)]
#[derive(Debug)]
pub struct Ledger {
    /// How many entries have ever been taken; may be more than there are.
    pub taken: AtomicUsize,
    /// The entries.
    pub entries: [Entry; MOST],
}

/// The length of a [`Ledger`] in memory.
pub const LEN: usize = size_of::<Ledger>();

/// The mappings of a ledger that has been read from another process, word by word.
pub fn of_bytes(bytes: &[u8]) -> Vec<Range<usize>> {
    const WORD: usize = size_of::<usize>();
    let words: Vec<usize> =
        bytes.chunks_exact(WORD).map(|word| word.try_into().map_or(0, usize::from_ne_bytes)).collect();
    let taken = words.first().copied().unwrap_or(0);
    let pairs = words.get(1..).unwrap_or_default().chunks_exact(2).take(taken);
    pairs.map(|pair| pair[0]..pair[1]).filter(|range| !range.is_empty()).collect()
}

static LEDGER: Ledger = Ledger {
    taken: AtomicUsize::new(0),
    entries: [const { Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MOST],
};

/// The ledger.
pub fn all() -> &'static Ledger {
    &LEDGER
}

/// A mapping has been made. No lock, no allocation: hits map alternate stacks.
pub fn add(start: usize, len_bytes: usize) {
    let index = LEDGER.taken.fetch_add(1, Ordering::Relaxed);
    if let Some(entry) = LEDGER.entries.get(index) {
        entry.start.store(start, Ordering::Relaxed);
        entry.end.store(start + len_bytes, Ordering::Release);
    }
}

/// A mapping, or a part of one, is about to be unmapped. One thread does so at a time.
pub fn remove(start: usize, len_bytes: usize) {
    let end = start + len_bytes.next_multiple_of(PAGE);
    for entry in LEDGER.entries.iter().take(LEDGER.taken.load(Ordering::Relaxed)) {
        let (from, to) = (entry.start.load(Ordering::Relaxed), entry.end.load(Ordering::Acquire));
        if end <= from || to <= start {
            continue;
        }
        if start <= from {
            entry.start.store(end.min(to), Ordering::Relaxed);
        } else {
            entry.end.store(start, Ordering::Relaxed);
            if end < to {
                add(end, to - end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(within: core::ops::Range<usize>) -> std::vec::Vec<(usize, usize)> {
        let pairs =
            LEDGER.entries.iter().map(|e| (e.start.load(Ordering::Relaxed), e.end.load(Ordering::Relaxed)));
        pairs.filter(|(start, end)| start < end && within.contains(start)).collect()
    }

    #[test]
    fn what_is_unmapped_in_parts_is_known_in_parts() {
        const BASE: usize = 1 << 20;
        let here = || known(BASE..BASE + 16 * PAGE);
        add(BASE, 10 * PAGE);
        remove(BASE, PAGE);
        remove(BASE + 9 * PAGE, PAGE);
        assert_eq!(here(), [(BASE + PAGE, BASE + 9 * PAGE)]);
        remove(BASE + 4 * PAGE, 1);
        assert_eq!(here(), [(BASE + PAGE, BASE + 4 * PAGE), (BASE + 5 * PAGE, BASE + 9 * PAGE)]);
        remove(BASE, 16 * PAGE);
        assert_eq!(here(), []);
    }
}
