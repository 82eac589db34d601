//! Another program in this one's place: it inherits which signals the program ignores and blocks, and what is
//! pending.
//!
//! What is blocked of ours and waits with us, the kernel is told of for the call ([`super::wished`]). The
//! kernel hands ignored states on, and knows ours, which are handlers. So they are ignored in truth for the
//! call. A breakpoint that is hit while SIGTRAP is ignored ends the process: nobody may run into one
//! meanwhile. This thread runs code of ours only, or a handler of the program's, for which the actions are
//! ours again ([`Executing::interrupt`](threads::Executing::interrupt)). Where there are other threads
//! nothing is ignored.

use super::entries_of;
use super::owned::OWNED;
use super::program::{action_of, may_ignore};
use super::wished;
use crate::sys::{self, Action, SignalSet};
use crate::threads::{self, Replaced};
use core::ffi::{c_int, c_long};

/// Whether there may be something that the kernel would not hand on by itself.
pub(crate) fn hands_on() -> bool {
    OWNED.into_iter().any(may_ignore) || wished::has_any()
}

/// The kernel's action of `signal`, ours, if the program ignores it, and what the kernel hands on.
fn ignored(signal: c_int) -> Option<(Action, Action)> {
    // SAFETY: asks only.
    let kernel = unsafe { sys::sigaction(signal, None) }.ok()?;
    let version = entries_of(signal).version(kernel.handler)?;
    let is_ignored = action_of(signal, version).handler == libc::SIG_IGN;
    is_ignored.then_some((kernel, Action { handler: libc::SIG_IGN, ..Action::DEFAULT }))
}

/// Makes `execve` or `execveat` with what the program ignores; returns the errno if the call fails. Not
/// during a hit: a child of `vfork` would leave its parent in it.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn execute(number: c_long, arguments: [usize; 5]) -> c_int {
    let replaced = Replaced::new(if sys::is_only_thread() { ignored } else { |_| None });
    // SAFETY: the caller's promise.
    unsafe { call(&replaced, number, arguments) }.err().unwrap_or(0)
}

/// Makes a system call with what the program blocks, and what waits, in the kernel. Not during a hit.
///
/// # Errors
/// The errno.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn call_as_blocked(number: c_long, arguments: [usize; 5]) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    unsafe { call(&Replaced::new(|_| None), number, arguments) }
}

/// # Safety
/// As for the system call.
unsafe fn call(replaced: &Replaced, number: c_long, arguments: [usize; 5]) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    let call = || unsafe { sys::call(number, arguments) };
    let Some(block) = threads::current_or_new() else { return call() };
    let mask = sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
    block.executing.begin(replaced);
    let shown = wished::show_kernel(block, mask);
    sys::sigprocmask(libc::SIG_SETMASK, Some(shown));
    let answer = call();
    sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
    block.executing.end(replaced);
    sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    answer
}
