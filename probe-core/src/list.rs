//! Intrusive lists: they keep items without an allocation, which could fail. Under the registry's lock.

use crate::held::{Hold, Lent};
use crate::sync::{AtomicPtr, Relaxed};
use alloc::boxed::Box;
use core::ptr::NonNull;

/// An item of a [`List`]; it is in one list at a time.
pub(crate) trait Linked: Sized {
    /// The next item of its list; null at the end, and in none.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// A list of items that stay valid while they are in it.
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
    /// `item` is in no list. It is freed only after it has been taken out of this one, by the holder of the
    /// lock.
    pub(crate) unsafe fn push(&mut self, item: NonNull<T>) {
        // SAFETY: `item` is freed after it has been taken out, and it is not in yet.
        let link = unsafe { item.as_ref() }.link();
        debug_assert!(link.load(Relaxed).is_null(), "in a list already");
        link.store(self.first, Relaxed);
        self.first = item.as_ptr();
    }

    /// Takes the first item out.
    pub(crate) fn pop<'g>(&mut self, _hold: &'g Hold) -> Option<Lent<'g, T>> {
        // SAFETY: `push` was promised that nobody frees it as long as the lock is borrowed.
        self.take_first().map(|item| unsafe { Lent::new(item) })
    }

    fn take_first(&mut self) -> Option<NonNull<T>> {
        let first = NonNull::new(self.first)?;
        // SAFETY: what is in the list is valid.
        let link = unsafe { first.as_ref() }.link();
        self.first = link.swap(core::ptr::null_mut(), Relaxed);
        Some(first)
    }

    /// Takes `item` out, if it is in the list.
    pub(crate) fn remove(&mut self, item: NonNull<T>) {
        let mut rest = core::mem::replace(self, Self::new());
        while let Some(other) = rest.take_first() {
            if other != item {
                // SAFETY: it was in the list until now.
                unsafe { self.push(other) };
            }
        }
    }

    /// The items.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Lent<'_, T>> {
        let lend = |item| {
            // SAFETY: what is in the list is valid, and nothing is taken out of it while it is borrowed.
            unsafe { Lent::new(item) }
        };
        let next = move |item: &Lent<'_, T>| NonNull::new(item.link().load(Relaxed)).map(lend);
        core::iter::successors(NonNull::new(self.first).map(lend), next)
    }
}

/// Items that it owns, and that nobody else reaches any more; freed when it is dropped.
pub(crate) struct Dead<T: Linked> {
    first: *mut T,
}

// SAFETY: it owns its items.
unsafe impl<T: Linked + Send> Send for Dead<T> {}

impl<T: Linked> Dead<T> {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self { first: core::ptr::null_mut() }
    }

    /// Puts `item` in. Needs no memory.
    pub(crate) fn push(&mut self, item: Box<T>) {
        item.link().store(self.first, Relaxed);
        self.first = Box::into_raw(item);
    }

    /// Takes an item out.
    pub(crate) fn pop(&mut self) -> Option<Box<T>> {
        let first = NonNull::new(self.first)?;
        // SAFETY: `push` has made it of a box, which nobody else has.
        let item = unsafe { Box::from_raw(first.as_ptr()) };
        self.first = item.link().load(Relaxed);
        Some(item)
    }

    /// Takes all out.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }
}

impl<T: Linked> Drop for Dead<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
