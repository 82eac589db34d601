//! How our handlers begin: with our signals open, or quietly, with all signals blocked.
//!
//! A handler that begins with ours open may be interrupted by one that is sent, before its first instruction,
//! and that one by the next: a process that is sent more than it handles would run out of stack. So with a
//! guard ours begin quietly. What was raised opens them again first, by a system call. What was sent leaves
//! all blocked until the program's handler is called, and from that one's return to the signal return.
//!
//! Breakpoints are too many for such a call: the handler of SIGTRAP begins quietly only where the program has
//! an action for SIGTRAP, or has ever blocked it. Any other program ends at the first one that it is sent. In
//! a confined program none does, as no call may be made.

use super::kept::quietly;
use super::owned::BLOCKED;
use super::recorded::Begins;
use super::writer::try_installing_in_quiet;
use crate::arch::UContext;
use crate::sys::{self, Action, SignalSet};
use crate::threads::Block;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::OnceLock;

/// Whether handlers may begin quietly.
static MAY_BE_QUIET: AtomicBool = AtomicBool::new(false);

/// Whether the program has ever blocked SIGTRAP: [`NEVER`], [`ONCE`] or [`PREPARED`].
static BLOCKS_TRAPS: AtomicU8 = AtomicU8::new(NEVER);

/// How the handler of SIGTRAP is installed once more.
static RENEW_TRAPS: OnceLock<fn()> = OnceLock::new();

const NEVER: u8 = 0;
/// It has, and the handler that is installed may still begin with ours open.
const ONCE: u8 = 1;
/// It has, and the handler begins quietly wherever handlers may.
const PREPARED: u8 = 2;

/// Whether asynchronous signals are blocked while SIGTRAP is handled.
static TRAPS_BLOCK: AtomicBool = AtomicBool::new(true);

/// How our handler of `signal` is to begin, `program` being the program's action.
pub(super) fn of(signal: c_int, program: &Action) -> Begins {
    let may_last = || program.handler != libc::SIG_DFL || BLOCKS_TRAPS.load(Ordering::Relaxed) != NEVER;
    let is_quiet = MAY_BE_QUIET.load(Ordering::Relaxed) && (signal != libc::SIGTRAP || may_last());
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
/// SIGTRAP is handled, if `block`. `renew_traps` installs the handler of SIGTRAP once more, where nobody else
/// installs one.
pub(super) fn set(begins: Begins, block: bool, renew_traps: fn()) {
    let _ = RENEW_TRAPS.set(renew_traps);
    MAY_BE_QUIET.store(begins == Begins::Quiet, Ordering::Relaxed);
    TRAPS_BLOCK.store(block, Ordering::Relaxed);
}

/// The thread with this block is about to block SIGTRAP: our handler begins quietly before one may be sent
/// and kept.
#[inline]
pub(super) fn expect_traps(block: &Block) {
    if BLOCKS_TRAPS.load(Ordering::Relaxed) != PREPARED {
        expect_first(block);
    }
}

#[cold]
fn expect_first(block: &Block) {
    // The actions of a child of `vfork` are not those of its parent, which its mask comes from.
    if !block.wished.is_lent() {
        let _ = BLOCKS_TRAPS.compare_exchange(NEVER, ONCE, Ordering::SeqCst, Ordering::Relaxed);
        prepare();
    }
}

/// Installs our handler of SIGTRAP once more, if it has to begin quietly from now on. Where another thread
/// installs an action, or this one forks, that ends in this: one of both sees what the other has done.
pub(super) fn prepare() {
    fence(Ordering::SeqCst);
    if MAY_BE_QUIET.load(Ordering::Relaxed) && BLOCKS_TRAPS.load(Ordering::SeqCst) == ONCE {
        quietly(|| {
            try_installing_in_quiet(|| {
                RENEW_TRAPS.get().inspect(|renew| renew());
                BLOCKS_TRAPS.store(PREPARED, Ordering::Relaxed);
            })
        });
    }
}
