//! A small lock that can be taken before a fork and released after it, in two functions; `std`'s guards do
//! not allow that.

use crate::signals::owned::BLOCKED;
use crate::sys::{self, SignalSet};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use probe_elf_symbols::building;
use std::sync::OnceLock;

/// A spinning lock that yields. Never taken on the hit path.
///
/// The program's signals wait while a thread holds its [`Guard`]: a signal handler that wanted the same lock
/// would wait for its own thread for ever (REG_13).
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through the guard, which one thread has at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> core::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Lock(..)")
    }
}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. While it waits, the thread may be interrupted.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        loop {
            let quiet = Quiet::begin();
            if self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Guard { lock: self, _quiet: Some(quiet) };
            }
            drop(quiet);
            std::thread::yield_now();
        }
    }

    /// Waits for the lock where the program's signals wait already, in a trap's handler: no mask has to
    /// change.
    pub(crate) fn lock_in_quiet(&self) -> Guard<'_, T> {
        self.take();
        Guard { lock: self, _quiet: None }
    }

    /// As [`Self::lock_in_quiet`]; `None`: another thread has it.
    pub(crate) fn try_lock_in_quiet(&self) -> Option<Guard<'_, T>> {
        let taken = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(Guard { lock: self, _quiet: None })
    }

    /// Takes the lock without a guard: before a fork, so that the child finds it in a known state.
    pub(crate) fn take(&self) {
        while self.taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
    }

    /// Gives back what [`Self::take`] took.
    ///
    /// # Safety
    /// The calling thread (or, in a fork's child, the thread that it is the copy of) has called
    /// [`Self::take`].
    pub(crate) unsafe fn give(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// The right to use the value.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    // Ends when the lock has been given back.
    _quiet: Option<Quiet>,
}

/// While it lives, the program's signals wait in this thread.
#[must_use]
pub(crate) struct Quiet {
    before: SignalSet,
}

impl Quiet {
    /// Lets the program's signals wait.
    pub(crate) fn begin() -> Self {
        Self { before: sys::sigprocmask(libc::SIG_BLOCK, Some(BLOCKED)) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        sys::sigprocmask(libc::SIG_SETMASK, Some(self.before));
    }
}

/// The result of `find`, which runs once, with the program's signals waiting: a signal handler could not wait
/// for it.
pub(crate) fn found_once<T>(found: &OnceLock<T>, find: impl FnOnce() -> T) -> &T {
    found.get().unwrap_or_else(|| {
        let _quiet = Quiet::begin();
        found.get_or_init(find)
    })
}

/// Tables are built in quiet, too.
pub(crate) fn start() {
    building::quiet_by(building::Quiet {
        begin: || sys::sigprocmask(libc::SIG_BLOCK, Some(BLOCKED)).bits(),
        end: |before| {
            sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::from_bits(before)));
        },
    });
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: a guard exists only while its thread has the lock.
        unsafe { self.lock.give() };
    }
}
