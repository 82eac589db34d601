//! Lists through their items: what has to be kept for later without asking for memory. Under the registry's lock.

use crate::sync::{AtomicPtr, Relaxed};
use core::ptr::NonNull;

/// What can stand in a [`List`], one at a time.
pub(crate) trait Linked: Sized {
    /// The next item of its list; null at the end, and in none.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// Items that are valid as long as they are in it.
pub(crate) struct List<T: Linked> {
    first: *mut T,
}

// SAFETY: it hands out pointers only.
unsafe impl<T: Linked + Sync> Send for List<T> {}

impl<T: Linked> List<T> {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self { first: core::ptr::null_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Puts `item` first.
    ///
    /// # Safety
    /// `item` is in no list, and valid until it has been taken out of this one.
    pub(crate) unsafe fn push(&mut self, item: NonNull<T>) {
        // SAFETY: the caller's.
        unsafe { item.as_ref() }.link().store(self.first, Relaxed);
        self.first = item.as_ptr();
    }

    /// Takes the first item out.
    pub(crate) fn pop(&mut self) -> Option<NonNull<T>> {
        let first = NonNull::new(self.first)?;
        // SAFETY: what is in the list is valid.
        let link = unsafe { first.as_ref() }.link();
        self.first = link.swap(core::ptr::null_mut(), Relaxed);
        Some(first)
    }

    /// Takes `item` out, if it is in the list.
    pub(crate) fn remove(&mut self, item: NonNull<T>) {
        let mut rest = core::mem::replace(self, Self::new());
        while let Some(other) = rest.pop() {
            if other != item {
                // SAFETY: it was in the list until now.
                unsafe { self.push(other) };
            }
        }
    }

    /// The items.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NonNull<T>> {
        // SAFETY: what is in the list is valid.
        let next = |item: &NonNull<T>| NonNull::new(unsafe { item.as_ref() }.link().load(Relaxed));
        core::iter::successors(NonNull::new(self.first), next)
    }
}
