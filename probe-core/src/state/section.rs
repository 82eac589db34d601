//! Sections: the stays inside during which nothing that tables and lists lead to is freed.
//!
//! A [`Stay`] is a section as a value, with one owner, and ends where it is closed. A [`Section`] is the
//! proof that one is open: it may be copied, and no copy outlives the stay, nor does a reference that is
//! found with one.

use crate::held::Held;
use crate::sync::{AtomicUsize, Release, SeqCst, fence};
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

/// A section as a value.
///
/// It ends where it is given back to its context, at the cost of the one store that ends it: the hit path has
/// no code for a value that is dropped.
#[must_use = "a section ends where it is closed"]
pub(crate) struct Stay(PhantomData<*const ()>);

/// The proof that a section is open. It has no size: to hand it to a function costs nothing.
#[derive(Clone, Copy)]
pub(crate) struct Section<'s>(PhantomData<&'s Stay>);

// SAFETY: what frees waits until all who were inside have left (the module `quiesce`), and the stay, made
// inside and closed by value, is borrowed as long as the proof lives.
unsafe impl<'s> Held<'s> for Section<'s> {}

impl Stay {
    /// Makes a new one.
    ///
    /// # Safety
    /// The caller has just gone inside, or takes up a section that was [handed on](Stay::hand_on), and does
    /// not leave before it is closed.
    #[inline(always)]
    pub(super) const unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// The proof.
    #[inline(always)]
    pub(crate) fn section(&self) -> Section<'_> {
        Section(PhantomData)
    }

    /// Continues the section without this value, until the context comes back from where it is sent, or until
    /// the code that sends it there closes it.
    #[inline(always)]
    pub(crate) fn hand_on(self) {
        let _ = ManuallyDrop::new(self);
    }
}

#[cfg(debug_assertions)]
impl Drop for Stay {
    fn drop(&mut self) {
        debug_assert!(false, "a section that is never closed");
    }
}

/// A section of code that has no context: counted, with real barriers.
pub(crate) struct Anonymous<'a> {
    count: &'a AtomicUsize,
    stay: ManuallyDrop<Stay>,
}

impl<'a> Anonymous<'a> {
    /// Goes inside; `count` says how many are.
    pub(crate) fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        fence(SeqCst);
        // SAFETY: counted just now, until this is dropped.
        Self { count, stay: ManuallyDrop::new(unsafe { Stay::new() }) }
    }

    /// The proof.
    pub(crate) fn section(&self) -> Section<'_> {
        self.stay.section()
    }
}

impl Drop for Anonymous<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Release);
    }
}
