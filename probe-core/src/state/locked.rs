//! The registry's lock of a program, held.
//!
//! The host is asked about symbols and places without it ([`Probes::resolve`] says why): a host may answer
//! under a lock of its own, and register while it holds that.

use crate::held::Hold;
use crate::state::books::Books;
use crate::state::host::Host;
use crate::state::lock::Guard;
use crate::state::probes::Probes;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr;

/// The registry's lock, held. Code that frees something borrows it mutably, so that no reference found with
/// it is left.
#[must_use = "the lock is held as long as this lives"]
pub(crate) struct Locked<'a, H: Host> {
    probes: &'a Probes<H>,
    /// Dropped before what has been buried.
    guard: ManuallyDrop<Guard<'a, Books<H>>>,
}

/// The registry's books, open for changes. Nothing is freed while they are: references found with their
/// `hold` can be used beside them.
pub(crate) struct OpenBooks<'g, H: Host> {
    pub(crate) hold: &'g Hold,
    books: &'g mut Books<H>,
}

impl<H: Host> Locked<'_, H> {
    /// The proof with which points and nodes are found.
    pub(crate) fn hold(&self) -> &Hold {
        self.guard.hold()
    }

    /// Opens the books.
    pub(crate) fn open(&mut self) -> OpenBooks<'_, H> {
        let (hold, books) = self.guard.open();
        OpenBooks { hold, books }
    }
}

impl<H: Host> Deref for OpenBooks<'_, H> {
    type Target = Books<H>;

    fn deref(&self) -> &Books<H> {
        self.books
    }
}

impl<H: Host> DerefMut for OpenBooks<'_, H> {
    fn deref_mut(&mut self) -> &mut Books<H> {
        self.books
    }
}

impl<H: Host> Deref for Locked<'_, H> {
    type Target = Books<H>;

    fn deref(&self) -> &Books<H> {
        self.guard.get()
    }
}

impl<H: Host> DerefMut for Locked<'_, H> {
    fn deref_mut(&mut self) -> &mut Books<H> {
        self.guard.open().1
    }
}

impl<H: Host> Drop for Locked<'_, H> {
    fn drop(&mut self) {
        let mut buried = self.take_buried();
        // SAFETY: taken once, as this is its end.
        drop(unsafe { ManuallyDrop::take(&mut self.guard) });
        while let Some(node) = buried.nodes.pop() {
            node.hits.end(self.probes.common.shares());
        }
    }
}

/// Who takes the lock in no task's name.
const ANYBODY: usize = 1;

impl<H: Host> Probes<H> {
    /// Takes the registry's lock without using it, so that a fork finds it free of other threads: call it
    /// before the fork, and [`Probes::thaw`] in parent and child. Not from a handler.
    pub fn freeze(&self) {
        core::mem::forget(self.lock());
    }

    /// Ends [`Probes::freeze`].
    ///
    /// # Safety
    /// This thread, or its copy in the forked child, has called [`Probes::freeze`] and not yet this.
    pub unsafe fn thaw(&self) {
        // SAFETY: `freeze` has forgotten one.
        unsafe { self.books.give_back() };
    }

    /// Waits for the lock, and takes it.
    pub(crate) fn lock(&self) -> Locked<'_, H> {
        let guard = self.books.lock(self.identity(), || self.host.relax());
        Locked { probes: self, guard: ManuallyDrop::new(guard) }
    }

    /// Whether the running code has interrupted the holder of the lock: it would wait for ever.
    pub(crate) fn has_interrupted_holder(&self) -> bool {
        let holder = self.books.holder();
        holder > ANYBODY && holder == self.identity()
    }

    /// The running task, [`ANYBODY`] where the host has no room for another.
    fn identity(&self) -> usize {
        self.host.task().map_or(ANYBODY, |task| ptr::from_ref(task).addr())
    }
}
