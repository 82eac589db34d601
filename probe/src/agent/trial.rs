//! Trials: a copy of this process makes a system call and dies, so that the outcome is known beforehand.
//!
//! Everything here is a system call and nothing else: it runs in handlers, in children that share their
//! parent's memory, and in the copy, where locks may be held that nobody will release.

use probe_host_linux::sys::{self, Action, SignalSet};
use std::ffi::{c_int, c_long};

/// A system call that executes a program.
#[derive(Clone, Copy)]
pub(super) struct Execution {
    /// Which.
    pub(super) number: c_long,
    /// What it is told.
    pub(super) arguments: [usize; 5],
}

impl Execution {
    /// Executes it in this process's place; returns the errno where that fails.
    pub(super) fn run(&self) -> c_int {
        // SAFETY: what the program itself is about to do.
        unsafe { sys::call(self.number, self.arguments) }.err().unwrap_or(0)
    }

    /// Whether it would succeed in a process that is debugged.
    ///
    /// # Errors
    /// It would fail with this errno.
    pub(super) fn would_run(&self) -> Result<(), c_int> {
        let begin = || {
            let asked = ask_to_be_traced().err();
            asked.unwrap_or_else(|| {
                send_to_self(libc::SIGSTOP);
                self.run()
            })
        };
        copy(begin, |copy| {
            let mut status = wait(copy)?;
            if libc::WIFSTOPPED(status) {
                // The signal that comes without it may be blocked.
                let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
                let _ = ptrace(libc::PTRACE_SETOPTIONS as usize, copy, options as usize);
            }
            while libc::WIFSTOPPED(status) {
                if status >> 16 == libc::PTRACE_EVENT_EXEC {
                    return Ok(());
                }
                let _ = ptrace(libc::PTRACE_CONT as usize, copy, 0);
                status = wait(copy)?;
            }
            said(status)
        })
    }
}

/// `PTRACE_TRACEME`.
///
/// # Errors
/// The errno.
pub(super) fn ask_to_be_traced() -> Result<(), c_int> {
    ptrace(libc::PTRACE_TRACEME as usize, 0, 0)
}

/// Whether [`ask_to_be_traced`] would succeed.
///
/// # Errors
/// It would fail with this errno.
pub(super) fn may_be_traced() -> Result<(), c_int> {
    copy(|| ask_to_be_traced().err().unwrap_or(0), |copy| said(wait(copy)?))
}

/// Makes a copy of this process that calls `act` and ends with its errno, and passes the copy to `see`. If no
/// copy can be made, the outcome is taken to be success.
fn copy(act: impl FnOnce() -> c_int, see: impl FnOnce(usize) -> Result<(), c_int>) -> Result<(), c_int> {
    let quiet = Quiet::new();
    // SAFETY: as fork(2): no stack, no memory shared, no signal at its end.
    let answer = match unsafe { sys::call(libc::SYS_clone, [0; 5]) } {
        Ok(0) => {
            let errno = act();
            loop {
                // SAFETY: ends the copy.
                let _ = unsafe { sys::call(libc::SYS_exit_group, [errno as usize]) };
            }
        }
        Ok(copy) => {
            let answer = see(copy);
            // SAFETY: our own child, not waited for, or gone.
            let _ = unsafe { sys::call(libc::SYS_kill, [copy, libc::SIGKILL as usize]) };
            while wait(copy).is_ok() {}
            answer
        }
        Err(_) => Ok(()),
    };
    drop(quiet);
    answer
}

/// While it lives, no signal comes, nor does one tell of a child.
struct Quiet {
    mask: SignalSet,
    action: Option<Action>,
}

impl Quiet {
    fn new() -> Self {
        // A blocked SIGCHLD would be kept pending although its action is the default.
        let mask = change_mask(SignalSet::ALL.without(libc::SIGCHLD));
        let none = Action { flags: libc::SA_NOCLDSTOP as usize, ..Action::DEFAULT };
        Self { mask, action: change_action(Some(&none)) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        change_action(self.action.as_ref());
        change_mask(self.mask);
    }
}

fn change_mask(to: SignalSet) -> SignalSet {
    let mut before = SignalSet::EMPTY;
    let [new, old] = [(&raw const to).expose_provenance(), (&raw mut before).expose_provenance()];
    let arguments = [libc::SIG_SETMASK as usize, new, old, size_of::<SignalSet>()];
    // SAFETY: two sets of our own.
    let _ = unsafe { sys::call(libc::SYS_rt_sigprocmask, arguments) };
    before
}

/// Sets the kernel's action for SIGCHLD, if there is one to be set; returns the one before.
fn change_action(to: Option<&Action>) -> Option<Action> {
    // SAFETY: one action is none, the other was the kernel's.
    unsafe { sys::sigaction(libc::SIGCHLD, Some(to?)) }.ok()
}

fn ptrace(request: usize, copy: usize, data: usize) -> Result<(), c_int> {
    // SAFETY: none of the requests here touches memory of ours.
    unsafe { sys::call(libc::SYS_ptrace, [request, copy, 0, data]) }.map(drop)
}

fn send_to_self(signal: c_int) {
    // SAFETY: has no preconditions.
    if let Ok(own) = unsafe { sys::call(libc::SYS_getpid, []) } {
        // SAFETY: a process may send itself any signal.
        let _ = unsafe { sys::call(libc::SYS_kill, [own, signal as usize]) };
    }
}

/// Waits for the copy's next change of state.
fn wait(copy: usize) -> Result<c_int, c_int> {
    let mut status = 0;
    let to = (&raw mut status).expose_provenance();
    // SAFETY: a place of our own.
    unsafe { sys::call(libc::SYS_wait4, [copy, to, libc::__WALL as usize, 0]) }.map(|_| status)
}

/// The errno that a copy has reported by its exit status; a copy that was killed has reported none.
fn said(status: c_int) -> Result<(), c_int> {
    match libc::WEXITSTATUS(status) {
        errno if libc::WIFEXITED(status) && errno != 0 => Err(errno),
        _ => Ok(()),
    }
}
