//! One system call each.

use super::thread::call;
use probe_host_linux::ledger;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

/// Functions that pass their arguments on as they are.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $number:ident;)*) => {
        $(
            /// # Safety
            /// As of libc's function of that name.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise.
                (unsafe { call(libc::$number, [$($argument as usize),*]) }) as $result
            }
        )*
    };
}

calls! {
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = SYS_open;
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = SYS_open;
    close(file: c_int) -> c_int = SYS_close;
    read(file: c_int, to: *mut c_void, len: usize) -> isize = SYS_read;
    write(file: c_int, from: *const c_void, len: usize) -> isize = SYS_write;
    writev(file: c_int, parts: *const c_void, count: c_int) -> isize = SYS_writev;
    pread64(file: c_int, to: *mut c_void, len: usize, at: i64) -> isize = SYS_pread64;
    lseek64(file: c_int, offset: i64, whence: c_int) -> i64 = SYS_lseek;
    fcntl(file: c_int, command: c_int, argument: usize) -> c_int = SYS_fcntl;
    access(path: *const c_char, mode: c_int) -> c_int = SYS_access;
    readlink(path: *const c_char, to: *mut c_char, len: usize) -> isize = SYS_readlink;
    fstat64(file: c_int, to: *mut c_void) -> c_int = SYS_fstat;
    stat64(path: *const c_char, to: *mut c_void) -> c_int = SYS_stat;
    statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int = SYS_statx;
    mprotect(at: *mut c_void, len: usize, protection: c_int) -> c_int = SYS_mprotect;
    madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int = SYS_madvise;
    poll(files: *mut c_void, count: u64, timeout_ms: c_int) -> c_int = SYS_poll;
    prctl(option: c_int, first: usize, second: usize, third: usize, fourth: usize) -> c_int = SYS_prctl;
    sigaltstack(new: *const c_void, old: *mut c_void) -> c_int = SYS_sigaltstack;
    getrandom(to: *mut c_void, len: usize, flags: c_uint) -> isize = SYS_getrandom;
    clock_gettime(clock: c_int, to: *mut c_void) -> c_int = SYS_clock_gettime;
    sched_yield() -> c_int = SYS_sched_yield;
    getpid() -> c_int = SYS_getpid;
    gettid() -> c_int = SYS_gettid;
}

/// # Safety
/// As `syscall(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    // SAFETY: the caller's promise.
    unsafe { call(number, [first, second, third, fourth, fifth, sixth]) as c_long }
}

/// # Safety
/// As `mmap(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let arguments =
        [at.expose_provenance(), len, protection as usize, flags as usize, file as usize, offset as usize];
    // SAFETY: the caller's promise.
    let mapped = unsafe { call(libc::SYS_mmap, arguments) };
    if mapped != -1 {
        ledger::add(mapped as usize, len.next_multiple_of(PAGE));
    }
    std::ptr::with_exposed_provenance_mut(mapped as usize)
}

/// # Safety
/// As `mmap(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(at, len, protection, flags, file, offset) }
}

/// # Safety
/// As `munmap(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    ledger::remove(at.expose_provenance(), len);
    // SAFETY: the caller's promise.
    (unsafe { call(libc::SYS_munmap, [at.expose_provenance(), len]) }) as c_int
}

/// The length of a page on x86-64.
pub(super) const PAGE: usize = 4096;

/// # Safety
/// As `sched_getaffinity(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sched_getaffinity(process: c_int, len: usize, set: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let written =
        unsafe { call(libc::SYS_sched_getaffinity, [process as usize, len, set.expose_provenance()]) };
    // The system call returns how much it has written.
    if written < 0 { -1 } else { 0 }
}
