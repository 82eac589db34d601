//! Another program in this one's place: it inherits which signals the program ignores and blocks, and what is
//! pending.
//!
//! What is blocked of ours and waits with us, the kernel is told of for the call ([`super::wished`]). The
//! kernel hands ignored states on, and knows ours, which are handlers. So they are ignored in truth for the
//! call. A breakpoint that is hit while SIGTRAP is ignored ends the process, and so does bad memory that a
//! handler reads while SIGSEGV or SIGBUS are: nobody may run into one meanwhile. This thread runs code of
//! ours only, or a handler of the program's, for which the actions are ours again
//! (`threads::Executing::interrupt`). Other threads stand still meanwhile (`threads::standstill`). Where they
//! do not, only what hits do not raise is ignored: a SIGILL or SIGFPE that the program raises while it
//! ignores them ends it in any case.
//!
//! They stand, too, where the kernel is given a mask with [`KNOCK`] in it: one that knocked then would leave
//! the knock to the new program.

use super::entries_of;
use super::kept::KNOCK;
use super::owned::{NEVER, NEVER_BLOCKED, OWNED};
use super::program::{action_of, may_ignore};
use super::wished;
use crate::sys::{self, Action, SignalSet};
use crate::threads::{self, Block, IsAlone, Others, Replaced};
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

/// What is ignored for an execution.
fn ignored_beside(signal: c_int, others: Others) -> Option<(Action, Action)> {
    if others == Others::Run && NEVER_BLOCKED.has(signal) { None } else { ignored(signal) }
}

/// Whether nobody else may run while this thread executes a program.
fn wants_to_be_alone() -> bool {
    wished::blocked().has(KNOCK) || NEVER.into_iter().any(|signal| ignored(signal).is_some())
}

/// Makes `execve` or `execveat` with what the program ignores; returns the errno if the call fails. Not
/// during a hit: a child of `vfork` would leave its parent in it.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn execute(number: c_long, arguments: [usize; 5]) -> c_int {
    let is_alone = if is_only_thread() {
        IsAlone::Already
    } else if wants_to_be_alone() && can_be_executed(number, arguments) {
        IsAlone::MakeSo(threads::is_standing)
    } else {
        IsAlone::No
    };
    let replaced = Replaced::new(ignored_beside, is_alone);
    let call = |call: &Call| {
        call.block.inspect(|block| wished::take_knocks(block));
        // SAFETY: the caller's promise.
        unsafe { call.make(number, arguments) }
    };
    with_kernel(&replaced, SignalSet::EMPTY, call).err().unwrap_or(0)
}

/// Whether there is a file that may be executed: calls of others that wait would be interrupted for nothing
/// (`execvp` tries one folder after the other).
fn can_be_executed(number: c_long, [first, second, .., flags]: [usize; 5]) -> bool {
    let (folder, path) = match number {
        libc::SYS_execve => (libc::AT_FDCWD as usize, first),
        _ if flags & libc::AT_EMPTY_PATH as usize != 0 => return true,
        _ => (first, second),
    };
    // SAFETY: the kernel reads a string, or refuses to.
    unsafe { sys::call(libc::SYS_faccessat, [folder, path, libc::X_OK as usize]) }.is_ok()
}

/// Runs `body`, with all signals blocked: the call that it is given it makes with what the program
/// blocks, and what waits, in the kernel, and with those of `more` blocked. Not during a hit.
pub(super) fn call_blocking<T>(more: SignalSet, body: impl FnOnce(&Call) -> T) -> T {
    with_kernel(&Replaced::new(|_, _| None, IsAlone::No), more, body)
}

/// A system call in the midst of [`with_kernel`].
pub(super) struct Call {
    block: Option<&'static Block>,
    /// The kernel's mask before.
    mask: SignalSet,
    /// Those that are blocked, too.
    more: SignalSet,
}

impl Call {
    /// Makes the call.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for the system call.
    pub(super) unsafe fn make(&self, number: c_long, arguments: [usize; 5]) -> Result<usize, c_int> {
        // SAFETY: the caller's promise.
        let call = || unsafe { sys::call(number, arguments) };
        let Some(block) = self.block else { return call() };
        let shown = wished::show_kernel(block, self.mask).union(self.more);
        sys::sigprocmask(libc::SIG_SETMASK, Some(shown));
        let answer = call();
        sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
        answer
    }
}

fn with_kernel<T>(replaced: &Replaced, more: SignalSet, body: impl FnOnce(&Call) -> T) -> T {
    let block = threads::current_or_new();
    let mask = sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
    block.inspect(|block| block.executing.begin(replaced));
    let done = body(&Call { block, mask, more });
    block.inspect(|block| block.executing.end(replaced));
    sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    done
}

/// Whether the calling thread is the process's only one; false, too, where nobody tells (without `/proc`).
fn is_only_thread() -> bool {
    #[cfg(target_pointer_width = "64")]
    const STAT: libc::c_long = libc::SYS_newfstatat;
    #[cfg(target_pointer_width = "32")]
    const STAT: libc::c_long = libc::SYS_fstatat64;
    // The folder has two links of its own, and one for each thread's folder in it.
    const OWN_LINKS: usize = 2;
    let mut stat = core::mem::MaybeUninit::<libc::stat64>::zeroed();
    let path = c"/proc/self/task".as_ptr().expose_provenance();
    // SAFETY: reads a string, and writes the structure.
    let told =
        unsafe { sys::call(STAT, [libc::AT_FDCWD as usize, path, (&raw mut stat).expose_provenance(), 0]) };
    // SAFETY: all zero, or as the kernel has filled it.
    let links = unsafe { stat.assume_init() }.st_nlink as usize;
    // An emulator has a thread of its own beside the program's.
    let others = usize::from(crate::text::is_unprotecting());
    told.is_ok() && links.checked_sub(OWN_LINKS).is_some_and(|threads| (1..=1 + others).contains(&threads))
}
