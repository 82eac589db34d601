//! A thread of the command's in a running program, in which the agent gets ready while the program's threads
//! run on: its object is written, and reads the symbols of the program's.
//!
//! One thread of the program's is stopped for as long as it makes two system calls: it maps memory, and makes
//! this thread, by the two instructions of [`DOOR`], behind which the thread ends as soon as nobody traces it
//! any more. It shares everything with its process, has no thread pointer, and blocks all signals.

use super::tracee::Tracee;
use libc::pid_t;
use std::io;

/// Makes a system call; in the child of a `clone`, ends the thread.
///
/// ```text
///     syscall
///     test eax, eax
///     jnz 1f
///     xor edi, edi
///     mov eax, 60         # exit
///     syscall
/// 1:  int3
/// ```
pub(super) const DOOR: [u8; 16] =
    [0x0f, 0x05, 0x85, 0xc0, 0x75, 0x09, 0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0xcc];

/// What the thread shares: all that threads do, but for what a C library makes for one.
const FLAGS: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM;

/// Whether a process may have one: no filter of system calls is in force, which could end it for the thread.
pub(super) fn is_possible(pid: pid_t) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "0"))
}

/// Has the one thread that `stopped` holds make a thread at a [`DOOR`].
///
/// # Errors
/// The kernel makes none.
pub(super) fn start(stopped: &mut Tracee, door: usize) -> io::Result<Tracee> {
    let thread = stopped.threads().first().copied();
    let thread = thread.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    stopped.clone_thread(thread, door, FLAGS as usize)
}
