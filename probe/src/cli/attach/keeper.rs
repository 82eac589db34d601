//! A process beside the command, which takes the agents away when the command has been killed.
//!
//! It is forked off, sleeps in a read from a socket, and is told there into which processes agents are put.
//! The socket's end without a word says that the command is no more. A descriptor in a traced program, or a
//! look at the command in each hit, would say it as well, and both could be seen.

use super::earlier;
use super::memory;
use super::program::{Program, Since};
use super::tracee::Tracee;
use crate::cli::processes;
use crate::wire::Found;
use libc::{c_int, pid_t};
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Tells the keeper that the command has seen to everything itself.
const DONE: pid_t = 0;

/// How often a process is tried that does not stop.
const TRIES: u32 = 20;

/// What is waited between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// The process. Its end goes with this.
pub(crate) struct Keeper {
    pid: pid_t,
    to: OwnedFd,
}

impl Keeper {
    /// Starts it. The calling process has one thread only.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start() -> io::Result<Self> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: descriptors just opened and owned by nobody else.
        let [from, to] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let command = std::process::id();
        // SAFETY: there is no other thread, which could hold a lock.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                be_alone(from.as_raw_fd());
                keep(&from, command);
                // SAFETY: ends the child, without what the command does at its end.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Self { pid, to }),
        }
    }

    /// An agent is about to be put into process `pid`.
    pub(crate) fn watch(&self, pid: pid_t) {
        let bytes = pid.to_ne_bytes();
        // A keeper that has been killed keeps nothing.
        let (fd, at) = (self.to.as_raw_fd(), bytes.as_ptr().cast());
        // SAFETY: bytes of our own.
        unsafe { libc::send(fd, at, bytes.len(), libc::MSG_NOSIGNAL) };
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.watch(DONE);
        // SAFETY: our own child.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// Leaves the command's terminal, group, descriptors and name, so that what ends the command does not end it.
fn be_alone(from: c_int) {
    // SAFETY: has no preconditions.
    unsafe { libc::setsid() };
    // SAFETY: a NUL-terminated name.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"agent-keeper".as_ptr()) };
    // SAFETY: a signal set is plain bits.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of our own.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: as above.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) };
    let from = from.cast_unsigned();
    let below = from.checked_sub(1).map(|last| (0, last));
    for (first, last) in below.into_iter().chain([(from + 1, u32::MAX)]) {
        // SAFETY: closes copies of descriptors that only the command uses.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Listens until the command has ended, and then takes away what is there.
fn keep(from: &OwnedFd, command: u32) {
    let mut watched = BTreeSet::new();
    while let Some(pid) = listen(from) {
        if pid == DONE {
            return;
        }
        watched.insert(pid);
    }
    watched.into_iter().for_each(clean_patiently);
    let mut seen = HashSet::new();
    loop {
        let has_agent = |pid: &pid_t| !seen.contains(pid) && has_inherited(*pid, command);
        let found: Vec<pid_t> = processes::all().filter(has_agent).collect();
        if found.is_empty() {
            return;
        }
        for pid in found {
            seen.insert(pid);
            clean_patiently(pid);
        }
    }
}

/// Whether a process has an agent of `command`'s from a fork: nobody has said of it that it is forked.
fn has_inherited(pid: pid_t, command: u32) -> bool {
    let maps = memory::maps(pid).unwrap_or_default();
    maps.iter().filter(|map| map.is_region()).any(|map| {
        let mut bytes = [0; Found::LEN];
        let read = memory::read(pid, map.start, &mut bytes).ok();
        let found = read.and_then(|()| Found::of_bytes(&bytes, pid.cast_unsigned()));
        found.is_some_and(|found| {
            found.reader_process == command && earlier::inherited(pid, found.others).is_some()
        })
    })
}

/// Takes the agent out of process `pid`, also where that takes some time.
fn clean_patiently(pid: pid_t) {
    for _ in 0..TRIES {
        if clean(pid).is_some() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// What the command says next; `None` when it is no more.
fn listen(from: &OwnedFd) -> Option<pid_t> {
    let mut bytes = [0; size_of::<pid_t>()];
    // SAFETY: room for so many bytes.
    let read = unsafe { libc::read(from.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    (read == bytes.len() as isize).then(|| pid_t::from_ne_bytes(bytes))
}

/// Takes the agent out of process `pid`; `None` if that may do later.
fn clean(pid: pid_t) -> Option<()> {
    let Ok(program) = Program::look(pid, false, Since::Earlier) else {
        // It has ended, or has executed another program.
        return Some(());
    };
    if program.regions().is_ok_and(|regions| regions.is_empty()) {
        // Another program by now, or another process of that number: it is not to be stopped.
        return Some(());
    }
    let mut tracee = Tracee::stop(pid).ok()?;
    earlier::take_away(&program, &mut tracee).ok()
}
