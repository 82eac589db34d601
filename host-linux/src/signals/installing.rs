//! Installing actions, one thread at a time: what the kernel is given, and what the program is told.

use super::beginning;
use super::interrupted::interrupted;
use super::writer::{WRITER, installing_in_quiet};
use crate::sys::{self, Action, SignalSet};

/// Runs `body` as the only installer of actions. The program's signals wait meanwhile, as their handlers may
/// want to install one, too; in a trap they wait anyway.
pub(super) fn installing<T>(body: impl FnOnce() -> T) -> T {
    let mask = interrupted().is_none().then(|| sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL)));
    let done = installing_in_quiet(body);
    beginning::prepare();
    if let Some(mask) = mask {
        sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    }
    done
}

/// Whether an action's handler is a function.
pub(super) fn is_handler(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// The flags of a program's action that the kernel must not act on by itself while our handler stands before
/// the program's: the handlers differ, and so do the restorers.
pub(super) const NOT_OURS: usize = libc::SA_RESETHAND as usize | SA_RESTORER;

/// `SA_RESTORER`, the same everywhere.
const SA_RESTORER: usize = 0x0400_0000;

/// The program's action as the kernel would report it, given the kernel's action `kernel` in its place: the
/// kernel drops flags that it does not know.
pub(super) fn as_told(action: Action, kernel: &Action) -> Action {
    Action { flags: action.flags & (kernel.flags | NOT_OURS), ..action }
}

/// Before a fork.
pub(crate) fn hold() {
    WRITER.take();
}

/// After a fork, in both processes.
///
/// # Safety
/// This thread has called [`hold`] before.
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { WRITER.give() };
    beginning::prepare();
}
