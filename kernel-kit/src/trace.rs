//! A buffer of records that hits write without a lock and one reader after the other drains.
//!
//! A ring of cells. A hit takes the next free one by an exchange of one word, writes it, and says so; one
//! that interrupts it meanwhile takes the next. Where no cell is free the record is dropped and counted: what
//! has not been read is never overwritten. The reader takes records in the order in which their cells were
//! taken, and waits for no writer: behind a cell that is still being written it finds nothing yet.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most bytes of one record.
pub const RECORD_LEN: usize = 256 - 2 * size_of::<usize>();

/// A record, and whose turn it is to use it.
struct Cell {
    /// [`Trace::free`] of the position that may write here next, or one more once it has written.
    turn: AtomicUsize,
    record: UnsafeCell<Record>,
}

struct Record {
    len: usize,
    bytes: [u8; RECORD_LEN],
}

/// `CELLS` records, a power of two. All bytes are zero at first, so that a static takes no room in an image.
pub struct Trace<const CELLS: usize> {
    /// The next position to write; a position's cell is its remainder.
    head: AtomicUsize,
    /// The next position to read.
    tail: AtomicUsize,
    dropped: AtomicUsize,
    is_read: AtomicBool,
    cells: [Cell; CELLS],
}

// SAFETY: a cell's record is used by the one whose turn it is: the writer that has moved `head` past its
// position, then the reader that holds `is_read`.
unsafe impl<const CELLS: usize> Sync for Trace<CELLS> {}

/// What a reader does with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It has it; the cell is free.
    Yes,
    /// It has no room for it: the next one to drain gets it first.
    No,
}

impl<const CELLS: usize> Trace<CELLS> {
    const SHIFT: u32 = {
        assert!(CELLS.is_power_of_two(), "the number of cells is a power of two");
        CELLS.trailing_zeros()
    };

    /// An empty one.
    pub const fn new() -> Self {
        Self {
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            is_read: AtomicBool::new(false),
            cells: [const {
                Cell {
                    turn: AtomicUsize::new(0),
                    record: UnsafeCell::new(Record { len: 0, bytes: [0; RECORD_LEN] }),
                }
            }; CELLS],
        }
    }

    /// The turn of a cell that position `at` may write to.
    const fn free(at: usize) -> usize {
        (at >> Self::SHIFT) << 1
    }

    fn cell(&self, at: usize) -> Option<&Cell> {
        self.cells.get(at % CELLS)
    }

    /// Takes the next record to write it. In a hit: no lock, no allocation. `None`: all are full, and this
    /// one counts as dropped.
    pub fn begin(&self) -> Option<Writing<'_>> {
        let mut at = self.head.load(Ordering::Relaxed);
        loop {
            let cell = self.cell(at)?;
            if cell.turn.load(Ordering::Acquire) == Self::free(at) {
                let next = at.wrapping_add(1);
                match self.head.compare_exchange_weak(at, next, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Some(Writing { cell, turn: Self::free(at), len: 0 }),
                    Err(now) => at = now,
                }
                continue;
            }
            // Another writer has taken it, or the reader has not come by yet.
            let now = self.head.load(Ordering::Relaxed);
            if now == at {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            at = now;
        }
    }

    /// Hands written records to `take`, the oldest first, until there is none or it has no room; and how many
    /// were. `None`: somebody else is reading.
    pub fn drain(&self, mut take: impl FnMut(&[u8]) -> Taken) -> Option<usize> {
        if self.is_read.swap(true, Ordering::Acquire) {
            return None;
        }
        let first = self.tail.load(Ordering::Relaxed);
        let mut at = first;
        while let Some(cell) = self.cell(at) {
            if cell.turn.load(Ordering::Acquire) != Self::free(at).wrapping_add(1) {
                break;
            }
            // SAFETY: it is written, and nobody writes it again before its turn changes below.
            let record = unsafe { &*cell.record.get() };
            if take(record.bytes.get(..record.len).unwrap_or_default()) == Taken::No {
                break;
            }
            cell.turn.store(Self::free(at.wrapping_add(CELLS)), Ordering::Release);
            at = at.wrapping_add(1);
            self.tail.store(at, Ordering::Relaxed);
        }
        self.is_read.store(false, Ordering::Release);
        Some(at.wrapping_sub(first))
    }

    /// How many records found no room.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The position that the next record gets.
    pub fn written(&self) -> usize {
        self.head.load(Ordering::Relaxed)
    }

    /// Whether all records before `position` have been read.
    pub fn is_read_to(&self, position: usize) -> bool {
        position.wrapping_sub(self.tail.load(Ordering::Relaxed)).cast_signed() <= 0
    }
}

impl<const CELLS: usize> Default for Trace<CELLS> {
    fn default() -> Self {
        Self::new()
    }
}

/// A record that is being written; complete when it is dropped.
pub struct Writing<'a> {
    cell: &'a Cell,
    turn: usize,
    len: usize,
}

impl Writing<'_> {
    /// What is free of it.
    pub fn spare(&mut self) -> &mut [u8] {
        let len = self.len;
        // SAFETY: this position's writer alone uses the record, until it says that it is written.
        let record = unsafe { &mut *self.cell.record.get() };
        record.bytes.get_mut(len..).unwrap_or_default()
    }

    /// Keeps the first `len_bytes` of what was free.
    pub fn advance(&mut self, len_bytes: usize) {
        self.len = self.len.saturating_add(len_bytes).min(RECORD_LEN);
    }

    /// Appends bytes, or as many as there is room for.
    pub fn put(&mut self, bytes: &[u8]) {
        let spare = self.spare();
        let len = bytes.len().min(spare.len());
        for (to, from) in spare.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.advance(len);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let len = self.len;
        // SAFETY: as in `spare`.
        let record = unsafe { &mut *self.cell.record.get() };
        record.len = len;
        self.cell.turn.store(self.turn.wrapping_add(1), Ordering::Release);
    }
}
