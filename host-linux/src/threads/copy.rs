//! Which process the threads in the table belong to, and whether this process is a copy of it that `fork`'s
//! hooks have not run in.

use crate::sys;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The process whose threads the blocks belong to.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// A word that is 1, and that the kernel clears in a fork's child; null where there is none.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// This is the process.
pub(super) fn start() {
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    make_mark();
}

/// The process whose threads the blocks belong to.
pub(super) fn process() -> u32 {
    PROCESS.load(Ordering::Relaxed)
}

fn mark() -> Option<&'static AtomicU32> {
    // SAFETY: null, or the page of `make_mark`, which stays.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }
}

/// Whether this is a fork's child in which no fork hook has run. A child that shares the memory (`CLONE_VM`)
/// does not count: the threads in the table are alive.
pub(super) fn is_copy() -> bool {
    mark().map_or_else(|| process() != sys::process_id(), |mark| mark.load(Ordering::Relaxed) == 0)
}

/// Whether this is a child that runs in the process's memory.
pub(super) fn is_guest() -> bool {
    process() != sys::process_id() && !is_copy()
}

/// This fork's child is the process from now on.
pub(super) fn forked() {
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    if let Some(mark) = mark() {
        mark.store(1, Ordering::Relaxed);
    }
}

/// Makes the word that a fork clears, unless the kernel's advice has no effect: an emulator accepts any
/// advice and follows none.
fn make_mark() {
    const NO_ADVICE: c_int = 0x7fff;
    let len = sys::page_len();
    let Ok(page) = sys::map(0, len, libc::PROT_READ | libc::PROT_WRITE) else { return };
    // SAFETY: just mapped, all zero, nobody else's.
    let advise = |advice| unsafe { libc::madvise(page as *mut c_void, len, advice) } == 0;
    if !advise(libc::MADV_WIPEONFORK) || advise(NO_ADVICE) {
        // SAFETY: nobody knows it.
        return unsafe { sys::unmap(page, len) };
    }
    let mark = page as *mut AtomicU32;
    // SAFETY: mapped and zero, a valid word, never unmapped.
    unsafe { (*mark).store(1, Ordering::Relaxed) };
    MARK.store(mark, Ordering::Relaxed);
}
