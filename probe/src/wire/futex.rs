//! Sleeping on a word that processes share, and announcing one's own end to the other side.

use probe_host_linux::sys;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the kernel makes of the word of a thread that has ended; `FUTEX_OWNER_DIED` of `<linux/futex.h>`.
const OWNER_DIED: u32 = 0x4000_0000;

/// Sleeps until somebody calls [`wake`], for `timeout_ms` at the most, if the word is still `seen`.
pub(super) fn wait(word: &AtomicU32, seen: u32, timeout_ms: u32) {
    let timeout = libc::timespec {
        tv_sec: (timeout_ms / 1000) as _,
        tv_nsec: ((timeout_ms % 1000) * 1_000_000) as libc::c_long,
    };
    let timeout = (&raw const timeout).expose_provenance();
    let arguments = [word.as_ptr().expose_provenance(), libc::FUTEX_WAIT as usize, seen as usize, timeout];
    // SAFETY: the address of a living word and of a timeout that outlives the call.
    let _ = unsafe { sys::call(libc::SYS_futex, arguments) };
}

/// Wakes everybody who sleeps on the word.
pub(super) fn wake(word: &AtomicU32) {
    let arguments = [word.as_ptr().expose_provenance(), libc::FUTEX_WAKE as usize, i32::MAX as usize];
    // SAFETY: the address of a living word; FUTEX_WAKE touches nothing else.
    let _ = unsafe { sys::call(libc::SYS_futex, arguments) };
}

/// An entry of the list that the kernel walks when a thread ends, `struct robust_list`; set_robust_list(2).
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Entry,
    futex_offset: libc::c_long,
    pending: *const Entry,
}

/// Makes the kernel mark the word when the calling thread ends, for whatever reason; then [`has_ended`] is
/// true. If the kernel does not offer that, the word stays 0.
///
/// The list itself is this process's own memory: a program that writes into the shared word deceives only
/// those that ask about it. No robust mutex may be used in this thread.
pub(super) fn mark_when_this_thread_ends(word: &'static AtomicU32) {
    let head: *mut Head = Box::into_raw(Box::new(Head {
        list: Entry { next: std::ptr::null() },
        futex_offset: 0,
        pending: std::ptr::null(),
    }));
    let entry: *mut Entry = Box::into_raw(Box::new(Entry { next: head.cast() }));
    let distance = word.as_ptr().addr().wrapping_sub(entry.addr());
    // SAFETY: just allocated; nobody else knows it.
    unsafe { (*head).futex_offset = distance.cast_signed() as libc::c_long };
    // SAFETY: as above.
    unsafe { (*head).list.next = entry };
    word.store(sys::thread_id(), Ordering::Release);
    let arguments = [head.expose_provenance(), size_of::<Head>()];
    // SAFETY: a list that is never freed, whose one entry leads to a word that stays mapped.
    if unsafe { sys::call(libc::SYS_set_robust_list, arguments) }.is_err() {
        word.store(0, Ordering::Release);
    }
}

/// Whether the thread that the word is about has ended, as far as the kernel has marked it.
#[inline]
pub(super) fn has_ended(word: &AtomicU32) -> bool {
    says_ended(word.load(Ordering::Relaxed))
}

/// As [`has_ended`], of what the word is.
#[inline]
pub(super) fn says_ended(word: u32) -> bool {
    word & OWNER_DIED != 0
}
