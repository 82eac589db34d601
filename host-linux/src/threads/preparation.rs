//! Whether a thread is being prepared for hits: the functions that this calls may be probed themselves.

use core::sync::atomic::{AtomicBool, Ordering};

/// One preparation of a thread at a time.
pub(super) struct Preparation(AtomicBool);

/// The thread is being prepared as long as this lives.
#[must_use]
pub(super) struct Preparing<'a>(&'a Preparation);

impl Preparation {
    /// `None` if this is a hit in a function that a preparation calls: such a hit is handled without one.
    pub(super) fn begin(&self) -> Option<Preparing<'_>> {
        (!self.0.swap(true, Ordering::Relaxed)).then(|| Preparing(self))
    }

    /// The thread is dead.
    pub(super) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        self.0.reset();
    }
}
