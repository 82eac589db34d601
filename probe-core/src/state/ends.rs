//! How the calls of one return probe end, and what is counted of them: the part of its pool that an instance
//! needs.

use crate::arch::{Arch, Resume};
use crate::held::Held;
use crate::state::counter::Counter;
use crate::state::handler::{Ending, ProbeCell};
use crate::sync::{AtomicPtr, Release, dereference};
use core::ptr;

/// How the calls of one return probe end.
pub(crate) struct Ends<A: Arch> {
    /// The probe; empty once it is unregistered.
    pub(crate) probe: ProbeCell<A>,
    /// The end of a call that returns: the probe's own, or `dropping` while the probe is silent.
    ending: AtomicPtr<Ending<A>>,
    dropping: Ending<A>,
    pub(crate) missed: Counter,
    pub(crate) vetoed: Counter,
    pub(crate) abandoned: Counter,
}

impl<A: Arch> Ends<A> {
    /// The ends of no probe yet. Call [`Ends::fall_silent`] next, once this no longer moves.
    pub(crate) const fn new(drop_data: unsafe fn(*mut u8)) -> Self {
        Self {
            probe: ProbeCell::new(),
            ending: AtomicPtr::new(ptr::null_mut()),
            dropping: Ending::dropping(drop_data),
            missed: Counter::new(),
            vetoed: Counter::new(),
            abandoned: Counter::new(),
        }
    }

    /// Calls that return are dropped.
    pub(crate) fn fall_silent(&self) {
        self.ending.store(ptr::from_ref(&self.dropping).cast_mut(), Release);
    }

    /// Calls that return end so.
    pub(crate) fn speak(&self, ending: &Ending<A>) {
        self.ending.store(ptr::from_ref(ending).cast_mut(), Release);
    }

    /// The end of a call that returns now.
    #[inline(always)]
    pub(crate) fn ending<'g>(&'g self, _held: impl Held<'g>) -> &'g Ending<A> {
        // SAFETY: the pool's own, or its probe's, which is freed after a grace period that began when the
        // pool had forgotten it: `_held` keeps it.
        unsafe { &*dereference(&self.ending) }
    }

    /// Drops the private data of a call.
    pub(crate) fn drop_data(&self) -> unsafe fn(*mut u8) {
        self.dropping.drop_data
    }

    /// Counts a call that could not be followed, whose registers are as they were.
    #[cold]
    pub(crate) fn miss(&self) -> Resume {
        self.missed.rise();
        Resume::Unchanged
    }
}
