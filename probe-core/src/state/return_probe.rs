//! The part of a return probe beside its node: its pool, and the handlers of its calls.

use crate::arch::Arch;
use crate::state::handler::{Ending, EntryHandler, ProbeRef};
use crate::state::pool::Pool;
use alloc::boxed::Box;
use core::ptr::NonNull;

/// The return half of a registered probe.
pub(crate) struct ReturnProbe<A: Arch> {
    pub(crate) entry: Option<Box<dyn EntryHandler<A>>>,
    pub(crate) ending: Ending<A>,
    /// Outlives the probe while calls are in flight.
    pub(crate) pool: NonNull<Pool<A>>,
}

// SAFETY: the pool is shared state made for it.
unsafe impl<A: Arch> Send for ReturnProbe<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for ReturnProbe<A> {}

impl<A: Arch> ReturnProbe<A> {
    pub(crate) fn pool(&self) -> &Pool<A> {
        // SAFETY: the registry frees a pool after its probe.
        unsafe { self.pool.as_ref() }
    }

    /// Tells it which probe it is the half of, before that is not silent any more.
    ///
    /// # Safety
    /// The probe's record is freed no sooner than a grace period after the pool [has forgotten](Pool::forget)
    /// it.
    pub(crate) unsafe fn belong_to(&self, probe: ProbeRef<'_, A>) {
        // SAFETY: calls end so only until the pool has forgotten the probe, and its record stays for a grace
        // period after that.
        unsafe { self.ending.probe.set(Some(probe)) };
        // SAFETY: as above.
        unsafe { self.pool().ends.probe.set(Some(probe)) };
    }

    /// The probe has become silent.
    pub(crate) fn fall_silent(&self) {
        self.pool().fall_silent();
    }

    /// The probe is not silent any more.
    pub(crate) fn speak(&self) {
        self.pool().speak(&self.ending);
    }
}
