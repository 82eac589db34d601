//! What users and handlers have asked for, and the next call of the registry carries out.

use crate::sync::{AcqRel, Acquire, AtomicBool, Relaxed, Release};

/// The two positions of the switch (CTL_2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// All breakpoints are planted that their probes ask for.
    On,
    /// None is.
    Off,
}

impl From<bool> for Switch {
    fn from(is_on: bool) -> Self {
        if is_on { Self::On } else { Self::Off }
    }
}

/// What has been asked for.
pub(crate) struct Switches {
    /// A handler has changed something that the next call of the registry has to carry out.
    has_changes: AtomicBool,
    /// A pool of a return probe has said that it should grow.
    low_pools: AtomicBool,
    is_on: AtomicBool,
    /// Whether all probes have stopped. Changed under the registry's lock, or by who has stopped them.
    has_stopped: AtomicBool,
    /// Whether probes get their jumps without being asked.
    is_optimising: AtomicBool,
}

impl Switches {
    /// Probes are on, and nothing has been asked for.
    pub(crate) const fn new() -> Self {
        Self {
            has_changes: AtomicBool::new(false),
            low_pools: AtomicBool::new(false),
            is_on: AtomicBool::new(true),
            has_stopped: AtomicBool::new(false),
            is_optimising: AtomicBool::new(false),
        }
    }

    /// Notes that there is something to be carried out.
    pub(crate) fn note_change(&self) {
        self.has_changes.store(true, Release);
    }

    /// Whether there is; whoever asks carries it out.
    pub(crate) fn take_changes(&self) -> bool {
        self.has_changes.swap(false, AcqRel)
    }

    /// What a pool raises that should grow.
    pub(crate) fn low_pools(&self) -> &AtomicBool {
        &self.low_pools
    }

    /// Whether one has raised it.
    pub(crate) fn has_low_pools(&self) -> bool {
        self.low_pools.load(Relaxed)
    }

    /// Whether probes are in text.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Acquire)
    }

    /// Says whether probes are to be in text.
    pub(crate) fn turn(&self, to: Switch) {
        self.is_on.store(to == Switch::On, Release);
    }

    /// Whether all probes have stopped, so that nothing is registered.
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped.load(Acquire)
    }

    /// Says whether they have.
    pub(crate) fn stop(&self, has_stopped: bool) {
        self.has_stopped.store(has_stopped, Release);
    }

    /// Whether probes get their jumps without being asked.
    pub(crate) fn is_optimising(&self) -> bool {
        self.is_optimising.load(Acquire)
    }

    /// Says whether they do.
    pub(crate) fn set_optimising(&self, to: Switch) {
        self.is_optimising.store(to == Switch::On, Release);
    }
}
