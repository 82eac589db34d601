//! Ownership by the first context: the first context that uses a thing owns it until a second one comes; from
//! then on it is shared.
//!
//! An atomic exchange waits for all earlier stores: a quarter of a return probe's time and half of a hit by
//! jump. The owner uses plain stores instead: no other context touches what it owns, and it cannot interrupt
//! itself there, because hits inside handlers are skipped.
//!
//! The word also says whether the probe is silent, so that one load answers both questions.

use crate::sync::{AcqRel, AtomicUsize, Relaxed};

/// What contexts are told apart by.
pub(crate) trait Identity {
    /// The context's address, which no other context has.
    fn address(&self) -> usize;

    /// A number that differs between contexts that lie beside one another, or a little further apart.
    fn number(&self) -> usize;
}

/// The address of the only context that has used it so far, 0 before the first, or [`SHARED`]; and
/// [`SILENT`].
pub(crate) struct FirstOwner(AtomicUsize);

/// No address of a context has this bit: the probe is silent.
const SILENT: usize = 1;
/// Nor this: there has been a second context.
const SHARED: usize = 2;

/// The ownership of something after a context has asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// That context, from now on.
    Won,
    /// That context, as before.
    Owned,
    /// Nobody: it is shared.
    Shared,
}

/// The owner of nothing.
pub(crate) static NOBODYS: FirstOwner = FirstOwner::shared();

impl FirstOwner {
    /// Nobody's yet; the probe may be silent.
    pub(crate) const fn nobody(is_silent: bool) -> Self {
        Self(AtomicUsize::new(if is_silent { SILENT } else { 0 }))
    }

    /// Shared from the beginning.
    pub(crate) const fn shared() -> Self {
        Self(AtomicUsize::new(SHARED))
    }

    /// Whether that context owns it, and the probe is not silent.
    #[inline(always)]
    pub(crate) fn is_open_to(&self, context: &impl Identity) -> bool {
        self.0.load(Relaxed) == context.address()
    }

    /// Whether it is shared, and the probe is not silent.
    #[inline(always)]
    pub(crate) fn is_open_to_all(&self) -> bool {
        self.0.load(Relaxed) == SHARED
    }

    /// Whether it is that context's.
    #[inline(always)]
    pub(crate) fn is(&self, context: &impl Identity) -> bool {
        self.0.load(Relaxed) & !SILENT == context.address()
    }

    /// Whether there has been a second context.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.load(Relaxed) & SHARED != 0
    }

    /// Makes it that context's, if it is nobody's yet. Another context's is shared from here on.
    pub(crate) fn claim(&self, context: &impl Identity) -> Ownership {
        loop {
            let owner = self.0.load(Relaxed);
            let (wanted, standing) = match owner & !SILENT {
                0 => (context.address(), Ownership::Won),
                SHARED => return Ownership::Shared,
                other if other == context.address() => return Ownership::Owned,
                _ => (SHARED, Ownership::Shared),
            };
            if self.0.compare_exchange(owner, wanted | owner & SILENT, Relaxed, Relaxed).is_ok() {
                return standing;
            }
        }
    }

    /// The probe has become silent.
    pub(crate) fn silence(&self) {
        self.0.fetch_or(SILENT, AcqRel);
    }

    /// Ends the probe's silence. A call that silences it at the same time is ordered behind.
    pub(crate) fn speak(&self) {
        self.0.fetch_and(!SILENT, AcqRel);
    }
}
