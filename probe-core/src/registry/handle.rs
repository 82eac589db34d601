//! The face of a registered probe: its handle and its counters.

use crate::addr::CodeAddr;
use crate::arch::Arch;
use crate::error::ControlError;
use crate::host::Host;
use crate::point::{DISABLED, GONE, Handlers, Node};
use crate::probes::Probes;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// What a probe has counted since it was registered; exact, whoever counts at the same time (HIT_7, HIT_8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Hits at which its handlers were called (or would have been, if it has none); of a return probe, the calls
    /// that are or were followed.
    pub hits: u64,
    /// Hits and returns whose handlers were skipped because they happened inside another hit, or where the host had no
    /// room for a context.
    pub missed_nested: u64,
    /// Calls not followed because no instance was free (RET_2).
    pub missed_pool: u64,
    /// Calls that the entry handler declined (RET_1).
    pub vetoed: u64,
    /// Followed calls that never returned: left by a longjmp or by unwinding (RET_7).
    pub abandoned: u64,
    /// Faults of the original instruction and of this probe's handlers.
    pub faults: u64,
    /// The most calls that were followed at the same time (RET_3).
    pub pool_high_water: u32,
}

impl Counters {
    pub(crate) fn of<A: Arch>(node: &Node<A>) -> Self {
        let mut counters = Self {
            hits: node.hits.get(node.lender.shares()),
            missed_nested: node.missed.get(),
            faults: node.faults.get(),
            ..Self::default()
        };
        if let Handlers::Return(probe) = &node.handlers {
            let pool = probe.pool();
            counters.missed_pool = pool.missed.get();
            counters.vetoed = pool.vetoed.get();
            counters.abandoned = pool.abandoned.get();
            (counters.hits, counters.pool_high_water) = pool.calls();
        }
        counters
    }
}

/// The kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// On an instruction.
    Kprobe,
    /// On a function's entry, with its arguments.
    Jprobe,
    /// On a function's entry and return.
    Kretprobe,
    /// On data.
    Watchpoint,
}

impl Kind {
    /// The kind's letter in listings: `k`, `j`, `r`, or `w`, which the kernel's own file does not have.
    pub const fn letter(self) -> char {
        match self {
            Self::Kprobe => 'k',
            Self::Jprobe => 'j',
            Self::Kretprobe => 'r',
            Self::Watchpoint => 'w',
        }
    }

    pub(crate) fn of<A: Arch>(node: &Node<A>) -> Self {
        match node.handlers {
            Handlers::Kprobe { .. } => Self::Kprobe,
            Handlers::Jprobe(_) => Self::Jprobe,
            Handlers::Return(_) => Self::Kretprobe,
        }
    }
}

/// A registered probe. Dropping it unregisters (REG_16).
#[must_use = "dropping a probe unregisters it; `leak` keeps it for good"]
pub struct Probe<H: Host> {
    pub(super) probes: &'static Probes<H>,
    pub(super) node: NonNull<Node<H::Arch>>,
}

// SAFETY: the node is shared state made for it, and its handlers are Send + Sync.
unsafe impl<H: Host> Send for Probe<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for Probe<H> {}

/// A probe that could not be unregistered, and why. It is registered still.
pub struct Kept<H: Host> {
    /// The probe.
    pub probe: Probe<H>,
    /// Why it is still there.
    pub error: ControlError,
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
    pub(super) fn node(&self) -> &Node<H::Arch> {
        // SAFETY: the node lives as long as the handle.
        unsafe { self.node.as_ref() }
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

    /// Whether it is neither disabled nor gone. The switch does not matter.
    pub fn is_enabled(&self) -> bool {
        !self.node().is(DISABLED | GONE)
    }

    /// Whether its text has gone (CTL_5).
    pub fn is_gone(&self) -> bool {
        self.node().is(GONE)
    }

    /// Lets its handlers run. From a handler, the breakpoint comes later (REG_18).
    ///
    /// # Errors
    /// It is gone, or text could not be written: then it is disabled still.
    pub fn enable(&self) -> Result<(), ControlError> {
        self.probes.set_disabled(self.node(), super::arm::Wish::Enable)
    }

    /// Keeps its handlers from running, at once. From a handler, the breakpoint goes later (REG_18).
    ///
    /// # Errors
    /// Text could not be written: it is disabled, but still costs a trap.
    pub fn disable(&self) -> Result<(), ControlError> {
        self.probes.set_disabled(self.node(), super::arm::Wish::Disable)
    }

    /// Removes it. When this returns, no handler of it runs or will run (REG_13).
    ///
    /// # Errors
    /// Called from a handler, or text could not be written: the probe is in the error, registered as before.
    pub fn unregister(self) -> Result<(), Kept<H>> {
        let this = ManuallyDrop::new(self);
        let mut failed = None;
        this.probes.remove_all(&[this.node], &mut |_, error| failed = Some(error));
        match failed {
            None => Ok(()),
            Some(error) => Err(Kept { probe: ManuallyDrop::into_inner(this), error }),
        }
    }

    /// Keeps it registered for good, and gives what can still be asked.
    pub fn leak(self) -> &'static Self {
        // SAFETY: the handle is given up, so it is never dropped; the box is.
        alloc::boxed::Box::leak(alloc::boxed::Box::new(self))
    }
}

impl<H: Host> Drop for Probe<H> {
    fn drop(&mut self) {
        // In a handler, or the text cannot be written now: the next call of the registry removes it.
        self.probes.remove_all(&[self.node], &mut |node, _| self.probes.orphan(node));
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
