//! The time, without a call into libc that could itself be probed.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The vDSO's `clock_gettime`, 0 where there is none.
static VDSO: AtomicUsize = AtomicUsize::new(0);

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// Looks for the vDSO. Called once, before the first hit.
pub(super) fn start() {
    let name = if cfg!(target_arch = "x86_64") || cfg!(target_arch = "x86") {
        c"__vdso_clock_gettime"
    } else {
        c"__kernel_clock_gettime"
    };
    for object in [c"linux-vdso.so.1", c"linux-vdso64.so.1", c"linux-gate.so.1"] {
        // SAFETY: NUL-terminated; only objects that are loaded already.
        let handle = unsafe { libc::dlopen(object.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            continue;
        }
        // SAFETY: a handle just opened and a NUL-terminated name.
        let function = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if !function.is_null() {
            VDSO.store(function as usize, Ordering::Relaxed);
            return;
        }
    }
}

/// CLOCK_MONOTONIC in nanoseconds. Fit for handlers.
#[inline]
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let function = VDSO.load(Ordering::Relaxed);
    if function != 0 {
        // SAFETY: the vDSO's function of that name has this type.
        let clock_gettime = unsafe { std::mem::transmute::<usize, ClockGettime>(function) };
        // SAFETY: a place for the time.
        unsafe { clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    } else {
        // SAFETY: a place for the time.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    }
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
