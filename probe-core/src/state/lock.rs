//! The registry's lock, and the proof that it is held.
//!
//! A spin lock, which no hit takes. The host is asked about symbols and places without it ([`Probes::resolve`]
//! says why): a host may answer under a lock of its own, and register while it holds that.

use crate::held::Hold;
use crate::room::free;
use crate::state::host::Host;
use crate::state::probes::{Books, Probes};
use crate::sync::{Acquire, Relaxed, Release};
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};

/// The registry's lock, held. Code that frees something borrows it mutably, so that no reference found with
/// it is left.
#[must_use = "the lock is held as long as this lives"]
pub(crate) struct Locked<'a, H: Host> {
    probes: &'a Probes<H>,
    hold: Hold,
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
        &self.hold
    }

    /// Opens the books.
    pub(crate) fn open(&mut self) -> OpenBooks<'_, H> {
        // SAFETY: no other guard exists, and this one is borrowed as long as the books are.
        OpenBooks { hold: &self.hold, books: unsafe { &mut *self.probes.books.get() } }
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
        // SAFETY: no other guard exists.
        unsafe { &*self.probes.books.get() }
    }
}

impl<H: Host> DerefMut for Locked<'_, H> {
    fn deref_mut(&mut self) -> &mut Books<H> {
        // SAFETY: no other guard exists.
        unsafe { &mut *self.probes.books.get() }
    }
}

impl<H: Host> Drop for Locked<'_, H> {
    fn drop(&mut self) {
        let mut dead = core::mem::replace(&mut self.dead, ptr::null_mut());
        let mut dead_watches = core::mem::replace(&mut self.dead_watches, ptr::null_mut());
        self.probes.holder.store(0, Release);
        while let Some(node) = NonNull::new(dead) {
            // SAFETY: buried after a grace period, so it is ours alone.
            let node = unsafe { free(node) };
            node.hits.end(&self.probes.shares);
            dead = node.next.load(Relaxed);
        }
        while let Some(node) = NonNull::new(dead_watches) {
            // SAFETY: taken out of its cell before a grace period, so it is ours alone.
            let node = unsafe { free(node) };
            dead_watches = node.next.load(Relaxed);
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
        self.holder.store(0, Release);
    }

    /// Waits for the lock, and takes it.
    pub(crate) fn lock(&self) -> Locked<'_, H> {
        let own = self.identity();
        while self.holder.compare_exchange(0, own, Acquire, Relaxed).is_err() {
            self.host.relax();
        }
        // SAFETY: what frees takes `&mut Locked`, or is the guard's end; this one stays in its guard.
        Locked { probes: self, hold: unsafe { Hold::new() } }
    }

    /// Whether the running code has interrupted the holder of the lock: it would wait for ever.
    pub(crate) fn has_interrupted_holder(&self) -> bool {
        let holder = self.holder.load(Relaxed);
        holder > ANYBODY && holder == self.identity()
    }

    /// The running task, [`ANYBODY`] where the host has no room for another.
    fn identity(&self) -> usize {
        self.host.task().map_or(ANYBODY, |task| ptr::from_ref(task).addr())
    }
}
