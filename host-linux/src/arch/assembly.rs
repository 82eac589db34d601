//! The Rust side of the assembly of each architecture: the copy that survives faults, the system call.

unsafe extern "C" {
    /// Copies until it is done or faults, and returns how many bytes are left. A fault goes on at
    /// `probe_host_linux_copy_end`.
    fn probe_host_linux_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    /// The kernel's answer to a system call with six arguments, below 0 an errno. A function, so that the
    /// guard does not find it in a static program.
    fn probe_host_linux_syscall(number: usize, arguments: *const usize) -> isize;
    /// The first instruction of the copy that may fault, or one before it.
    static probe_host_linux_copy_begin: u8;
    static probe_host_linux_copy_end: u8;
}

/// Copies until it is done or faults; returns how many bytes were not copied.
///
/// # Safety
/// The caller owns the memory at `to`. `from` and `to` may be any addresses as long as this crate's SIGSEGV
/// and SIGBUS handlers are in place.
pub(crate) unsafe fn nofault_copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise; faults end the copy through `nofault_fixup`.
    unsafe { probe_host_linux_copy(to, from, len) }
}

/// Where to resume after a fault at `pc`, if `pc` is in [`nofault_copy`]. The counting register holds the
/// bytes that are left there.
pub(crate) fn nofault_fixup(pc: usize) -> Option<usize> {
    let start = (&raw const probe_host_linux_copy_begin) as usize;
    let end = (&raw const probe_host_linux_copy_end) as usize;
    (start..end).contains(&pc).then_some(end)
}

/// Makes a system call without libc, whose functions may be probed; returns the kernel's answer, below 0 an
/// errno.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn syscall(number: libc::c_long, arguments: &[usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe { probe_host_linux_syscall(number as usize, arguments.as_ptr()) }
}
