//! Waiting for the end of a process that is not a child, for signals and for a time, all at once.

use super::failure;
use crate::cli::failure::Failure;
use libc::{c_int, pid_t};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The signals that end a trace.
const SIGNALS: [c_int; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE];

/// A descriptor for a process, which stays the same one.
///
/// # Errors
/// There is none.
pub(super) fn process(pid: pid_t) -> Result<OwnedFd, Failure> {
    // SAFETY: takes numbers only.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(opened as c_int).map_err(|error| failure::refused(pid, &error))
}

/// A descriptor from which [`SIGNALS`] are read from now on, blocked in this thread and in those that it
/// starts.
///
/// # Errors
/// The operating system's.
pub(super) fn signals() -> io::Result<OwnedFd> {
    // SAFETY: a signal set is plain bits.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of our own.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in SIGNALS {
        // SAFETY: a set of our own, a signal that exists.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: a set of our own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    // SAFETY: as above.
    owned(unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) })
}

fn owned(opened: c_int) -> io::Result<OwnedFd> {
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just opened and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Which of the descriptors can be read, after `timeout` at the latest.
fn readable<const N: usize>(descriptors: [&OwnedFd; N], timeout: Option<Duration>) -> [bool; N] {
    let poll =
        |descriptor: &OwnedFd| libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled = descriptors.map(poll);
    let timeout_ms =
        timeout.map_or(-1, |left| c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).saturating_add(1));
    // SAFETY: descriptors of our own.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, timeout_ms) };
    polled.map(|polled| polled.revents != 0)
}

/// Whether the process has ended.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    readable([process], Some(Duration::ZERO))[0]
}

/// Waits for the end of the process, of `limit`, or for a signal.
pub(super) fn until_over(process: &OwnedFd, signals: &OwnedFd, limit: Option<Duration>) {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let is_over = left.is_some_and(|left| left.is_zero());
        if is_over || readable([process, signals], left).contains(&true) {
            return;
        }
    }
}
