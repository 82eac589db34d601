//! A spin lock that also keeps interrupts away.

use crate::arch::{Interrupts, Machine, Native};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A value that one CPU at a time may use, with interrupts disabled.
pub struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `lock` gives the value to one CPU at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// The right to use the value; dropping it unlocks.
pub struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
    interrupts: Interrupts,
}

impl<T> SpinLock<T> {
    /// An unlocked value.
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until the value is free.
    pub fn lock(&self) -> Guard<'_, T> {
        let interrupts = Native::disable_interrupts();
        while self.locked.swap(true, Ordering::Acquire) {
            Native::relax();
        }
        Guard { lock: self, interrupts }
    }

    /// Unlocks whoever holds it: for the panic handler.
    pub fn seize(&self) {
        self.locked.store(false, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its lock is held by it.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a guard exists only while its lock is held by it, and is itself borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
        if self.interrupts == Interrupts::Enabled {
            Native::enable_interrupts();
        }
    }
}
