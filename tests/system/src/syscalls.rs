//! Functions of this kernel that do what the classic examples probe: a process is made, a file is opened.

use crate::task;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicI32, Ordering};

static NEXT_PID: AtomicI32 = AtomicI32::new(2);
static NEXT_FD: AtomicI32 = AtomicI32::new(3);

/// The paths that exist.
const FILES: [&CStr; 2] = [c"/etc/motd", c"/etc/passwd"];

/// Makes a process that ends at once; returns its number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_fork(
    clone_flags: usize,
    stack_start: usize,
    stack_size: usize,
    parent_tid: usize,
) -> isize {
    core::hint::black_box((clone_flags, stack_start, stack_size, parent_tid));
    task::spawn("child", || ());
    NEXT_PID.fetch_add(1, Ordering::Relaxed) as isize
}

/// Opens a file; returns its descriptor, or -2 where there is no such file.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_sys_open(path: *const c_char, flags: i32, mode: u32) -> isize {
    core::hint::black_box((flags, mode));
    // SAFETY: the callers in this kernel pass C strings.
    let path = unsafe { CStr::from_ptr(path) };
    if FILES.contains(&path) { NEXT_FD.fetch_add(1, Ordering::Relaxed) as isize } else { -2 }
}
