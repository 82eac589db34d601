//! What programs count in. All memory is there before the first hit; a hit takes no lock and waits for nobody, also not for
//! the hit that it interrupts; and no count is lost or made twice, whatever contexts do at the same time.
//!
//! What is kept per context is added up when it is read. Contexts may share a number (it is taken modulo how many there are):
//! they then share cache lines, and nothing else changes.

mod counter;
mod hash;
mod histogram;
mod lines;

pub use counter::{Array, Counter};
pub use hash::{Hash, PROBES};
pub use histogram::{Histogram, LOG2_BUCKETS, Scale};
pub use lines::NoMemory;

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
}
