//! Tables are built one at a time, so that a fork can wait for the end of it: a child could not finish what another thread had
//! begun.

use core::sync::atomic::{AtomicBool, Ordering};

/// Whether a table is being built. `std`'s locks cannot be taken in one function and given back in another.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to build a table.
#[must_use]
#[derive(Debug)]
pub struct Building(());

/// Waits for it.
pub fn begin() -> Building {
    hold();
    Building(())
}

impl Drop for Building {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

/// Before a fork: waits until no table is being built, and lets none be built.
pub fn hold() {
    while TAKEN.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        std::thread::yield_now();
    }
}

/// After a fork, in both processes.
///
/// # Safety
/// This thread (or, in a fork's child, the one that it is the copy of) has called [`hold`] before.
pub unsafe fn release() {
    TAKEN.store(false, Ordering::Release);
}
