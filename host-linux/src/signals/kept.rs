//! What waits with us: signals of [`NEVER_BLOCKED`] that were sent while the program blocks them, written
//! down in the thread's block or for the process. `super::wished` brings them, `super::waiting` answers with
//! them.

use super::owned::NEVER_BLOCKED;
use crate::sys::{self, SigInfo, SignalSet};
use crate::threads::{self, Block, Sent};
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether the guard writes down what is blocked.
pub(super) static IS_KEPT: AtomicBool = AtomicBool::new(false);

/// What was sent to the process.
pub(super) static OF_PROCESS: Sent = Sent::new();

/// The calling thread's block, if what it has blocked is written down.
#[inline]
pub(super) fn kept_block() -> Option<&'static Block> {
    IS_KEPT.load(Ordering::Relaxed).then(threads::current).flatten()
}

/// Runs `body`, which hits nothing, with all signals blocked.
pub(super) fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let mask = sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
    let done = body();
    sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    done
}

/// What the kernel may block of a mask.
pub(super) fn without_ours(mask: SignalSet) -> SignalSet {
    SignalSet::from_bits(mask.bits() & !NEVER_BLOCKED.bits())
}

/// Takes one of these signals, of the thread before the process.
pub(super) fn take(block: &Block, of: SignalSet) -> Option<SigInfo> {
    block.wished.sent.take(of).or_else(|| OF_PROCESS.take(of))
}

/// All that waits for the thread.
pub(super) fn waiting(block: &Block) -> SignalSet {
    block.wished.sent.set().union(OF_PROCESS.set())
}
