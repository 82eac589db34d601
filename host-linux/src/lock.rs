//! A small lock that can be taken before a fork and released after it, in two functions; `std`'s guards do not allow that.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A spinning lock that yields. Never taken on the hit path.
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

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.take();
        Guard { lock: self }
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
    /// The calling thread (or, in a fork's child, the thread that it is the copy of) has called [`Self::take`].
    pub(crate) unsafe fn give(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// The right to use the value.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
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
