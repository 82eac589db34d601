//! What waits with us: signals of [`NEVER_BLOCKED`] that were sent while the program blocks them, written
//! down in the thread's block or for the process. `super::wished` brings them, `super::waiting` answers with
//! them.

use super::owned::{NEVER, NEVER_BLOCKED};
use crate::sys::{self, SigInfo, SignalSet};
use crate::threads::{self, Block, Noted, Sent};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Whether the guard writes down what is blocked.
pub(super) static IS_KEPT: AtomicBool = AtomicBool::new(false);

/// What was sent to the process.
pub(super) static OF_PROCESS: Sent = Sent::of([const { AtomicU32::new(0) }; NEVER.len()]);

/// The signal that tells a thread that something has been passed on to it. Where one is pending already, that
/// one does.
pub(super) const KNOCK: c_int = libc::SIGBUS;

/// `SI_QUEUE`: sent with a value.
pub(super) const WITH_VALUE: c_int = -1;

/// What [`KNOCK`] is sent with, where others say who they are.
pub(super) fn knock() -> SigInfo {
    SigInfo::fault(KNOCK, WITH_VALUE, (&raw const OF_PROCESS).expose_provenance())
}

pub(super) fn is_knock(info: &SigInfo) -> bool {
    let knock = knock();
    (info.signal, info.code, info.addr) == (knock.signal, knock.code, knock.addr)
}

/// Lets what has been passed on come: where a [`KNOCK`] is pending already, the end of its handling looks
/// again.
pub(super) fn bring_by_knock(block: &Block) {
    block.wished.be_due();
    sys::queue_to_self(&knock());
}

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

/// Runs `body`, which touches the program's memory: that may fault.
pub(super) fn openly<T>(body: impl FnOnce() -> T) -> T {
    let mask = sys::sigprocmask(libc::SIG_UNBLOCK, Some(NEVER_BLOCKED));
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

/// Takes one of these signals for a thread that has begun to wait for them.
pub(super) fn look(block: &Block, of: SignalSet, _: &Noted) -> Option<SigInfo> {
    take(block, of)
}

/// All that waits for the thread.
pub(super) fn waiting(block: &Block) -> SignalSet {
    block.wished.sent.set().union(OF_PROCESS.set())
}
