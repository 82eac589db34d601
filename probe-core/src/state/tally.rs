//! The facts about a probe that users see: its kind, and its counters.

use crate::arch::Arch;
use crate::state::point::{Handlers, Node};

/// The counts of a probe since it was registered; exact, however many contexts count at the same time (HIT_7,
/// HIT_8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Hits at which its handlers were called (or would have been, if it has none); of a return probe, the
    /// calls that are or were followed.
    pub hits: u64,
    /// Hits and returns whose handlers were skipped because they happened inside another hit, or where the
    /// host had no room for a context.
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
        let missed = Misses::of(node);
        let mut counters = Self {
            hits: node.hits.get(node.lender.shares()),
            missed_nested: missed.nested,
            missed_pool: missed.pool,
            faults: node.faults.get(),
            ..Self::default()
        };
        if let Handlers::Return(probe) = &node.handlers {
            let pool = probe.pool();
            let ends = &pool.ends;
            counters.vetoed = ends.vetoed.get();
            counters.abandoned = ends.abandoned.get();
            (counters.hits, counters.pool_high_water) = pool.calls();
        }
        counters
    }
}

/// What a probe has missed: two of its [`Counters`], without the sums that the others cost. For handlers that
/// pass on what was missed since their last hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misses {
    /// As [`Counters::missed_nested`].
    pub nested: u64,
    /// As [`Counters::missed_pool`].
    pub pool: u64,
}

impl Misses {
    #[inline]
    pub(crate) fn of<A: Arch>(node: &Node<A>) -> Self {
        let pool = match &node.handlers {
            Handlers::Return(probe) => probe.pool().ends.missed.get(),
            _ => 0,
        };
        Self { nested: node.missed.get(), pool }
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
