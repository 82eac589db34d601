//! The calling thread: its pointer, its `errno`, and how functions fail.

use probe_host_linux::sys;
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// From a thread pointer to the program's `errno`, or 0 where it has none.
static ERRNO_AT: AtomicUsize = AtomicUsize::new(0);

/// `errno` where the program has none.
static ERRNO: AtomicI32 = AtomicI32::new(0);

/// Finds out where `errno` is. `errno_location` is the program's `__errno_location`, or 0: a function
/// that computes an address, and takes no lock. It is called once, before it may have a probe: `errno`
/// lies at the same distance from every thread pointer, which is `errno_behind` where that is known.
pub(super) fn learn(errno_location: usize, errno_behind: isize) {
    ERRNO_AT.store(errno_behind.cast_unsigned(), Ordering::Relaxed);
    if errno_location != 0 {
        // SAFETY: libc's function of that name has this type.
        let theirs = unsafe { std::mem::transmute::<usize, extern "C" fn() -> *mut c_int>(errno_location) };
        let distance = theirs().addr().wrapping_sub(pthread_self());
        ERRNO_AT.store(distance, Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
extern "C" fn __errno_location() -> *mut c_int {
    match ERRNO_AT.load(Ordering::Relaxed) {
        0 => ERRNO.as_ptr(),
        distance => std::ptr::with_exposed_provenance_mut(pthread_self().wrapping_add(distance)),
    }
}

/// Makes a system call and returns as libc's functions do: -1 and `errno`.
///
/// # Safety
/// As for the system call.
pub(super) unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> isize {
    // SAFETY: the caller's promise.
    match unsafe { sys::call(number, arguments) } {
        Ok(result) => result as isize,
        Err(errno) => fail(errno),
    }
}

/// What a function returns that has failed.
pub(super) fn fail(errno: c_int) -> isize {
    // SAFETY: the calling thread's own.
    unsafe { __errno_location().write(errno) };
    -1
}

/// The thread pointer, where the ABI keeps it.
#[unsafe(no_mangle)]
extern "C" fn pthread_self() -> usize {
    let pointer: usize;
    // SAFETY: reads a word that every thread has.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack)) };
    pointer
}
