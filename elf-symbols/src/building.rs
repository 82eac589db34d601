//! Tables are built one at a time, so that a fork can wait for the end: a child could not finish a table that
//! another thread had begun.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

/// Whether a table is being built. `std`'s locks cannot be taken in one function and given back in another.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// How a thread holds back interruptions: a signal handler that wanted a table would wait for its own thread
/// for ever.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    /// From now on; what it returns goes to `end`.
    pub begin: fn() -> u64,
    /// As before `begin`.
    pub end: fn(u64),
}

static QUIET: OnceLock<Quiet> = OnceLock::new();

/// Makes threads hold back interruptions by `quiet` while they build a table. The first call counts.
pub fn quiet_by(quiet: Quiet) {
    let _ = QUIET.set(quiet);
}

/// The right to build a table.
#[must_use]
#[derive(Debug)]
pub struct Building {
    quiet: Option<(Quiet, u64)>,
}

/// Waits for it; the thread may be interrupted meanwhile.
pub fn begin() -> Building {
    loop {
        let quiet = QUIET.get().map(|quiet| (*quiet, (quiet.begin)()));
        if try_hold() {
            return Building { quiet };
        }
        end(quiet);
        std::thread::yield_now();
    }
}

fn try_hold() -> bool {
    TAKEN.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

fn end(quiet: Option<(Quiet, u64)>) {
    if let Some((quiet, before)) = quiet {
        (quiet.end)(before);
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
        end(self.quiet.take());
    }
}

/// Before a fork: waits until no table is being built, and lets none be built.
pub fn hold() {
    while !try_hold() {
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
