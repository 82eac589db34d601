//! Makes the process ready to be probed, and holds its one collection of probes.

pub use crate::host::{Indirect, LinuxProcess};

use crate::host::PROBES;
use crate::symbols::objects;
use crate::text::TextAccess;
use crate::{clock, lock, signals, sync, sys, threads, unwind, watch};
use core::ffi::c_int;
use core::fmt;
use probe_core::error::TextError;
use probe_core::{CodeAddr, Probes};
use std::sync::OnceLock;

/// Why a process cannot be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// There is no address space for the threads' state: the errno.
    NoMemory(c_int),
    /// A signal handler could not be installed: the errno.
    NoHandler(c_int),
    /// Neither way of writing text works here.
    TextIsReadOnly(TextError),
    /// Valgrind runs the program. It executes translations of text, so that it may not see a breakpoint that
    /// comes later, and ends itself at a system call that it does not know.
    Valgrind,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory(errno) => write!(f, "no memory for the threads' state (os error {errno})"),
            Self::NoHandler(errno) => write!(f, "no signal handler could be installed (os error {errno})"),
            Self::TextIsReadOnly(error) => write!(f, "text cannot be written in this process: {error}"),
            Self::Valgrind => f.write_str(
                "Valgrind runs this program, and does not execute its text but translations of it",
            ),
        }
    }
}

impl core::error::Error for StartError {}

/// Makes this process ready to be probed; later calls return the same at once.
///
/// Installs the signal handlers ([`signals`]), finds out how text can be written, and registers for core
/// synchronisation and for forks. Call it before the program starts threads, if possible. The calling
/// thread's signals wait meanwhile.
///
/// # Errors
/// [`StartError`] names what the system does not allow.
pub fn start() -> Result<&'static Probes<LinuxProcess>, StartError> {
    static STARTED: OnceLock<Result<(), StartError>> = OnceLock::new();
    (*lock::found_once(&STARTED, start_once))?;
    Ok(&PROBES)
}

/// Lets no system call be made any more that only saves time (`unshare`, by which the kernel tells whether
/// another thread runs). For programs that a filter of system calls may be in force in from their start.
pub fn spare_system_calls() {
    sys::spare();
}

/// Sends messages about probes to `log` instead of standard error. Called before [`start`], it also gets the
/// messages of starting.
pub fn set_log(log: fn(&str)) {
    PROBES.host().set_log(log);
}

/// This process's probes. First reports objects that were unloaded meanwhile to the core, so that their
/// probes are `[GONE]`.
///
/// # Panics
/// If the process cannot be probed; [`start`] tells why.
pub fn probes() -> &'static Probes<LinuxProcess> {
    match start() {
        Ok(probes) => {
            objects_changed();
            probes
        }
        Err(error) => panic!("{error}"),
    }
}

/// Looks whether shared objects have been unloaded, and makes their probes `[GONE]` (CTL_5). An agent calls
/// this after every `dlclose`; [`probes`] does it, too. Inside a handler, or in code that interrupts a
/// registration, it does nothing: the next call does it.
pub fn objects_changed() {
    if !PROBES.events().can_be_told() {
        return;
    }
    objects::report_gone(&mut |start, end| {
        PROBES.events().text_going(CodeAddr::new(start), CodeAddr::new(end))
    });
}

/// Closes the one descriptor that probes keep open, so that the program finds none but its own. The next
/// change of text opens it again, and fails where that has become impossible: without `/proc` (another root),
/// with no number free, in a process that is not dumpable.
pub fn close_descriptor() {
    PROBES.host().text.close();
}

/// Whether Valgrind runs this program: its own library is loaded first wherever a dynamic loader runs. What
/// it runs without one is not known here.
pub fn is_in_valgrind() -> bool {
    objects::snapshot().iter().any(|object| object.name.starts_with("vgpreload_core"))
}

fn start_once() -> Result<(), StartError> {
    if is_in_valgrind() {
        return Err(StartError::Valgrind);
    }
    threads::start(threads::Exits {
        ended: |task| _ = PROBES.events().task_exit(task),
        ending: |task, sp| PROBES.events().task_exiting(task, sp),
    })
    .map_err(StartError::NoMemory)?;
    signals::start().map_err(StartError::NoHandler)?;
    threads::learn_numbers();
    let access = PROBES.host().text.start().map_err(StartError::TextIsReadOnly)?;
    if access == TextAccess::Unprotect {
        PROBES.host().log(
            "probes: this system ignores text written through an alias (an emulator?): \
             pages are writable and executable while a breakpoint is stored",
        );
    }
    sync::start();
    lock::start();
    clock::start();
    crate::arch::start();
    // SAFETY: the three functions live for ever.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_parent), Some(after_fork_child)) };
    threads::thread_started();
    Ok(())
}

/// The child must not find a lock in the hands of a thread that it does not have.
unsafe extern "C" fn before_fork() {
    PROBES.freeze();
    unwind::hold();
    objects::hold();
    PROBES.host().text.hold();
    signals::hold();
    watch::hold();
    threads::hold();
}

unsafe extern "C" fn after_fork_parent() {
    threads::release();
    // SAFETY: `before_fork` has run in this thread.
    unsafe { release() };
}

/// Gives back what [`before_fork`] took.
///
/// # Safety
/// It has run in this thread, or in the one that this is the copy of.
unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { watch::release() };
    // SAFETY: as above.
    unsafe { signals::release() };
    // SAFETY: as above.
    unsafe { PROBES.host().text.release() };
    // SAFETY: as above.
    unsafe { objects::release() };
    // SAFETY: as above.
    unsafe { unwind::release() };
    // SAFETY: as above.
    unsafe { PROBES.thaw() };
}

unsafe extern "C" fn after_fork_child() {
    // SAFETY: this thread is the copy of the one in which `before_fork` has run.
    unsafe { release() };
    objects::forked();
    threads::forked();
    signals::wished::forked();
    watch::forked();
}
