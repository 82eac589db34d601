//! What contexts share: counters for those that hit the same probes, spares for hits without a frame, and how
//! many are inside without a context.

use crate::state::counter::Shares;
use crate::state::section::Anonymous;
use crate::state::spare::Spares;
use crate::sync::{Acquire, AtomicUsize};

/// What all contexts of a program have in common, those that have no
/// [`Context`](crate::state::context::Context) too.
pub(crate) struct Common<S> {
    /// What steps without a frame have borrowed.
    spares: Spares<S>,
    /// What contexts that hit the same probes count with.
    shares: Shares,
    /// How many are inside without a context.
    anonymous: AtomicUsize,
}

impl<S: Copy> Common<S> {
    /// Nobody is inside, nothing is shared yet.
    pub(crate) const fn new() -> Self {
        Self { spares: Spares::new(), shares: Shares::new(), anonymous: AtomicUsize::new(0) }
    }

    /// What steps without a frame have borrowed.
    #[inline(always)]
    pub(crate) fn spares(&self) -> &Spares<S> {
        &self.spares
    }

    /// What hits of shared probes are counted with.
    #[inline(always)]
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Goes inside without a context.
    pub(crate) fn enter(&self) -> Anonymous<'_> {
        Anonymous::enter(&self.anonymous)
    }

    /// Whether somebody is inside without a context.
    pub(crate) fn has_anonymous(&self) -> bool {
        self.anonymous.load(Acquire) != 0
    }
}
