//! `ptrace`.

use libc::{c_long, c_void, pid_t};
use std::io;

/// `PTRACE_GETSIGMASK` and its counterpart of `<linux/ptrace.h>`.
pub(super) const GET_MASK: libc::c_uint = 0x420a;
pub(super) const SET_MASK: libc::c_uint = 0x420b;

/// Makes a request of a thread that this one traces.
///
/// # Errors
/// The operating system's.
pub(super) fn ptrace(
    request: libc::c_uint,
    thread: pid_t,
    address: usize,
    data: usize,
) -> io::Result<c_long> {
    // SAFETY: each caller passes what its request takes; those that write are given our own buffers.
    let result = unsafe { libc::ptrace(request, thread, address as *mut c_void, data as *mut c_void) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The address of a buffer of ours.
pub(super) fn address_of<T>(what: &mut T) -> usize {
    std::ptr::from_mut(what).expose_provenance()
}
