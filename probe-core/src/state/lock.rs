//! A spin lock around what it guards, and the proof that it is held. No hit takes it.

use crate::held::Hold;
use crate::sync::{Acquire, AtomicUsize, Relaxed, Release, UnsafeCell};
use core::mem::ManuallyDrop;

/// A lock, and what it guards.
pub(crate) struct Lock<T> {
    /// Who has it, 0: nobody.
    holder: AtomicUsize,
    /// Never dropped: it lives in a static, and handlers' view of it needs no code that frees memory.
    guarded: ManuallyDrop<UnsafeCell<T>>,
}

// SAFETY: what it guards is reached through the one guard there is.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The lock, held.
#[must_use = "the lock is held as long as this lives"]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    hold: Hold,
}

impl<T> Lock<T> {
    /// Free.
    pub(crate) const fn new(guarded: T) -> Self {
        Self { holder: AtomicUsize::new(0), guarded: ManuallyDrop::new(UnsafeCell::new(guarded)) }
    }

    /// Waits for it, and takes it in the name of `own`, which is not 0.
    pub(crate) fn lock(&self, own: usize, relax: impl Fn()) -> Guard<'_, T> {
        while self.holder.compare_exchange(0, own, Acquire, Relaxed).is_err() {
            relax();
        }
        // SAFETY: what frees takes the guard `&mut`, or is its end; this one stays in its guard.
        Guard { lock: self, hold: unsafe { Hold::new() } }
    }

    /// Who has it; 0: nobody.
    pub(crate) fn holder(&self) -> usize {
        self.holder.load(Relaxed)
    }

    /// Gives it back for a guard that has been forgotten.
    ///
    /// # Safety
    /// Just one has been, of this lock or, before a fork, of what this is the copy of.
    pub(crate) unsafe fn give_back(&self) {
        self.holder.store(0, Release);
    }
}

impl<T> Guard<'_, T> {
    /// The proof that it is held.
    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// What it guards.
    pub(crate) fn get(&self) -> &T {
        // SAFETY: no other guard exists, and this one is borrowed.
        unsafe { &*self.lock.guarded.get() }
    }

    /// What it guards, to be changed beside what is found with the proof.
    pub(crate) fn open(&mut self) -> (&Hold, &mut T) {
        // SAFETY: no other guard exists, and this one is borrowed mutably.
        (&self.hold, unsafe { &mut *self.lock.guarded.get() })
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.holder.store(0, Release);
    }
}
