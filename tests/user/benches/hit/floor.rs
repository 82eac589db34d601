//! The floor: what a signal round trip costs when nobody does anything in it. And SIGTRAP in other hands for
//! a while.

use crate::victims::machine;
use probe_host_linux::sys::{self, Action, SignalSet};

/// A signal handler.
pub(crate) type Handler = unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Swaps SIGTRAP's action for a bare one while `run` runs, and puts the old one back.
///
/// The bare handler only steps over the breakpoint where the architecture asks for it.
pub(crate) fn with_bare_sigtrap<R>(run: impl FnOnce() -> R) -> R {
    with_sigtrap(on_trap, run)
}

/// The same with any handler. By bare system calls: those of libc are the guard's.
pub(crate) fn with_sigtrap<R>(handler: Handler, run: impl FnOnce() -> R) -> R {
    let before = exchange(None);
    // It returns as the one before does.
    let other = Action {
        handler: handler as *const () as usize,
        flags: before.flags & !(libc::SA_ONSTACK as usize),
        mask: SignalSet::EMPTY,
        ..before
    };
    exchange(Some(&other));
    let result = run();
    exchange(Some(&before));
    result
}

/// Sets SIGTRAP's action where `new` is given; the one before.
fn exchange(new: Option<&Action>) -> Action {
    // SAFETY: the handler only edits its own frame.
    unsafe { sys::sigaction(libc::SIGTRAP, new) }.expect("SIGTRAP's action can be changed")
}

/// Steps over the breakpoint.
pub(crate) extern "C" fn on_trap(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    machine::skip_breakpoint(context);
}
