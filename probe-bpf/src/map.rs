//! The maps that programs count in. All memory is allocated before the first hit. A hit takes no lock and
//! waits for no other context, nor for the hit that it interrupts. No count is lost or made twice, whatever
//! contexts do at the same time.
//!
//! Values that are kept per context are added up when they are read. Contexts may share a number (it is taken
//! modulo the number of contexts): they then share cache lines, and nothing else changes.

mod counter;
mod hash;
mod histogram;
mod lines;
mod texts;

pub use counter::{Array, Counter};
pub use hash::{Hash, PROBES};
pub use histogram::{Histogram, LOG2_BUCKETS, STEPS_BUCKETS, Scale};
pub use lines::{Line, NoMemory};
pub use texts::{MAX_TEXT, Texts};

/// A map, as programs name it by its index.
#[derive(Debug)]
pub enum Map {
    /// Values that programs load, store and change by their address.
    Array(Array),
    /// A sum.
    Counter(Counter),
    /// Counts of values by their size.
    Histogram(Histogram),
    /// Sums by key.
    Hash(Hash),
    /// Numbers for texts.
    Texts(Texts),
}
