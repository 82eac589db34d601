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
fn readable(descriptors: &[&OwnedFd], timeout: Option<Duration>) -> Vec<bool> {
    let poll =
        |descriptor: &&OwnedFd| libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<_> = descriptors.iter().map(poll).collect();
    let timeout_ms =
        timeout.map_or(-1, |left| c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).saturating_add(1));
    // SAFETY: descriptors of our own.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
    polled.iter().map(|polled| polled.revents != 0).collect()
}

/// Whether the process has ended.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    readable(&[process], Some(Duration::ZERO)).contains(&true)
}

/// Waits for the end of all the processes, of `limit`, or for a signal.
pub(super) fn until_over(processes: &[&OwnedFd], signals: &OwnedFd, limit: Option<Duration>) {
    let until = limit.map(|limit| Instant::now() + limit);
    let mut running = processes.to_vec();
    while !running.is_empty() {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return;
        }
        let all: Vec<&OwnedFd> = std::iter::once(signals).chain(running.iter().copied()).collect();
        let [has_come, ended @ ..] = &*readable(&all, left) else { return };
        if *has_come {
            return;
        }
        let mut ended = ended.iter();
        running.retain(|_| ended.next() == Some(&false));
    }
}
