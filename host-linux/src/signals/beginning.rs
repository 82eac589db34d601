//! How our handlers begin: with our signals open, or quietly, with all signals blocked.
//!
//! A handler that begins with ours open may be interrupted by one that is sent, before its first instruction,
//! and that one by the next: a process that is sent more than it handles would run out of stack. So with a
//! guard ours begin quietly. What was raised opens them again first, by a system call. What was sent leaves
//! all blocked until the program's handler is called, and from that one's return to the signal return.
//!
//! Breakpoints are too many for such a call: the handler of SIGTRAP begins quietly only where the program has
//! an action for SIGTRAP, or was sent one. In a confined program none does, as no call may be made.

use super::owned::BLOCKED;
use super::recorded::Begins;
use crate::arch::UContext;
use crate::sys::{self, Action, SignalSet};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether handlers may begin quietly.
static MAY_BE_QUIET: AtomicBool = AtomicBool::new(false);

/// Whether the process was ever sent a SIGTRAP while it had no action for it.
static IS_TRAP_SENT: AtomicBool = AtomicBool::new(false);

/// Whether asynchronous signals are blocked while SIGTRAP is handled.
static TRAPS_BLOCK: AtomicBool = AtomicBool::new(true);

/// How our handler of `signal` is to begin, `program` being the program's action.
pub(super) fn of(signal: c_int, program: &Action) -> Begins {
    let is_sent = || program.handler != libc::SIG_DFL || IS_TRAP_SENT.load(Ordering::Relaxed);
    let is_quiet = MAY_BE_QUIET.load(Ordering::Relaxed) && (signal != libc::SIGTRAP || is_sent());
    if is_quiet { Begins::Quiet } else { Begins::Open }
}

/// What is blocked while our handler of `signal` runs, but for its quiet beginning.
fn blocked(signal: c_int) -> SignalSet {
    let is_open = signal == libc::SIGTRAP && !TRAPS_BLOCK.load(Ordering::Relaxed);
    if is_open { SignalSet::EMPTY } else { BLOCKED }
}

/// What the kernel blocks while our handler of `signal` runs.
pub(super) fn mask(signal: c_int, begins: Begins) -> SignalSet {
    if begins == Begins::Quiet { SignalSet::ALL } else { blocked(signal) }
}

/// Ends the quiet beginning of our handler of `signal`, which was raised in `context`.
pub(super) fn open(signal: c_int, context: UContext) {
    sys::sigprocmask(libc::SIG_SETMASK, Some(context.mask().union(blocked(signal))));
}

/// Lets handlers that are installed from now on begin `begins`, and asynchronous signals be blocked while
/// SIGTRAP is handled, if `block`.
pub(super) fn set(begins: Begins, block: bool) {
    MAY_BE_QUIET.store(begins == Begins::Quiet, Ordering::Relaxed);
    TRAPS_BLOCK.store(block, Ordering::Relaxed);
}

/// A SIGTRAP was sent: whether the handler that is installed from now on begins quietly because of that.
pub(super) fn expect_traps() -> bool {
    let may_be_quiet = MAY_BE_QUIET.load(Ordering::Relaxed);
    IS_TRAP_SENT.fetch_or(may_be_quiet, Ordering::Relaxed);
    may_be_quiet
}
