//! Whether a thread is just being prepared for hits: what that calls may be probed itself.

use core::sync::atomic::{AtomicBool, Ordering};

/// One preparation of a thread at a time.
pub(super) struct Preparation(AtomicBool);

/// The thread is being prepared as long as this lives.
#[must_use]
pub(super) struct Preparing<'a>(&'a Preparation);

impl Preparation {
    /// `None`: this is a hit in what a preparation calls, and is to be handled as it is.
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
