//! The handle of a registered probe.

use crate::addr::CodeAddr;
use crate::error::{EnableError, RemoveError};
use crate::state::host::Host;
use crate::state::owned::OwnedNode;
use crate::state::point::{DISABLED, GONE, Node};
use crate::state::probes::Probes;
use crate::state::tally::{Counters, Kind, Misses};
use core::fmt;
use core::mem::ManuallyDrop;

/// A registered probe. Dropping it unregisters (REG_16).
#[must_use = "dropping a probe unregisters it; `leak` keeps it for good"]
pub struct Probe<H: Host> {
    pub(super) probes: &'static Probes<H>,
    /// Given up in [`Probe::give_up`] and when the handle is dropped.
    node: ManuallyDrop<OwnedNode<H::Arch>>,
}

/// A probe that could not be unregistered, and why. It is registered still.
pub struct Kept<H: Host> {
    /// The probe.
    pub probe: Probe<H>,
    /// Why it is still there.
    pub error: RemoveError,
}

impl<H: Host> fmt::Debug for Kept<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("probe", &self.probe).field("error", &self.error).finish()
    }
}

impl<H: Host> fmt::Display for Kept<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the probe at {} is kept: {}", self.probe.addr(), self.error)
    }
}

impl<H: Host> core::error::Error for Kept<H> {}

impl<H: Host> Probe<H> {
    pub(super) fn new(probes: &'static Probes<H>, node: OwnedNode<H::Arch>) -> Self {
        Self { probes, node: ManuallyDrop::new(node) }
    }

    /// Ends the handle, not the probe.
    pub(super) fn give_up(self) -> OwnedNode<H::Arch> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: the handle itself is neither used nor dropped any more.
        unsafe { ManuallyDrop::take(&mut this.node) }
    }

    fn node(&self) -> &Node<H::Arch> {
        &self.node
    }

    /// Where it stands.
    pub fn addr(&self) -> CodeAddr {
        self.node().place()
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        Kind::of(self.node())
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        Counters::of(self.node())
    }

    /// What it has missed; part of [`Probe::counters`].
    pub fn misses(&self) -> Misses {
        Misses::of(self.node())
    }

    /// Whether it is neither disabled nor gone. The switch does not matter.
    pub fn is_enabled(&self) -> bool {
        !self.node().is_any(DISABLED | GONE)
    }

    /// Whether its text has gone (CTL_5).
    pub fn is_gone(&self) -> bool {
        self.node().is(GONE)
    }

    /// Enables its handlers. From a handler, the breakpoint comes later (REG_18).
    ///
    /// # Errors
    /// It is gone, or text could not be written: then it is still disabled.
    pub fn enable(&self) -> Result<(), EnableError> {
        self.probes.set_disabled(self.node(), super::arm::Wish::Enable)
    }

    /// Disables its handlers, at once. From a handler, the breakpoint goes later (REG_18).
    ///
    /// # Errors
    /// Text could not be written: it is disabled, but still costs a trap.
    pub fn disable(&self) -> Result<(), EnableError> {
        self.probes.set_disabled(self.node(), super::arm::Wish::Disable)
    }

    /// Removes it. When this returns, no handler of it runs or will run (REG_13).
    ///
    /// # Errors
    /// Called from a handler, or text could not be written: the probe is in the error, registered as before.
    pub fn unregister(self) -> Result<(), Kept<H>> {
        let probes = self.probes;
        let mut kept = Ok(());
        probes.remove_all(&mut [Some(self.give_up())], &mut |node, error| {
            kept = Err(Kept { probe: Self::new(probes, node), error });
        });
        kept
    }

    /// Keeps it registered for good, and gives a reference for counters and controls.
    pub fn leak(self) -> &'static Self {
        // SAFETY: the handle is given up, so it is never dropped; the box is.
        alloc::boxed::Box::leak(alloc::boxed::Box::new(self))
    }
}

impl<H: Host> Drop for Probe<H> {
    fn drop(&mut self) {
        // In a handler, or the text cannot be written now: the next call of the registry removes it.
        // SAFETY: taken once, as this is its end.
        let node = unsafe { ManuallyDrop::take(&mut self.node) };
        self.probes.remove_all(&mut [Some(node)], &mut |node, _| self.probes.orphan(node));
    }
}

impl<H: Host> fmt::Debug for Probe<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe")
            .field("kind", &self.kind())
            .field("addr", &self.addr())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
