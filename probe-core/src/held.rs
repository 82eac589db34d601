//! The proof that nothing found in a table or list is freed: a value that only a read-side section or the
//! registry's lock can make.

use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

/// The proof that nothing which a table leads to is freed: a [`Section`](crate::state::section::Section) of
/// the hit path, or the registry's lock, borrowed. A reference that is found with it does not outlive `'g`.
///
/// # Safety
/// During `'g`, nothing that was in a table when the value was made is freed, nor a table's array.
pub(crate) unsafe trait Held<'g>: Copy {}

/// The proof that the registry's lock is held. Nothing is freed while it is borrowed.
pub(crate) struct Hold(());

// SAFETY: `new` was promised it.
unsafe impl<'g> Held<'g> for &'g Hold {}

impl Hold {
    /// For the lock's guard.
    ///
    /// # Safety
    /// Code that frees something has borrowed it mutably, or owns it.
    pub(crate) const unsafe fn new() -> Self {
        Self(())
    }
}

/// A reference that knows the allocation it leads to. The registry finds with it what it may free later; then
/// the reference has ended.
pub(crate) struct Lent<'g, T> {
    at: NonNull<T>,
    _held: PhantomData<&'g T>,
}

impl<T> Clone for Lent<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Lent<'_, T> {}

impl<'g, T> Lent<'g, T> {
    /// Lends the T at `at`.
    ///
    /// # Safety
    /// A T is there, and nobody frees it or borrows it mutably during `'g`.
    pub(crate) unsafe fn new(at: NonNull<T>) -> Self {
        Self { at, _held: PhantomData }
    }

    /// The reference.
    pub(crate) fn get(self) -> &'g T {
        // SAFETY: `new` was promised that it is there as long as `'g`.
        unsafe { self.at.as_ref() }
    }

    /// The allocation.
    pub(crate) fn pointer(self) -> NonNull<T> {
        self.at
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.get()
    }
}
