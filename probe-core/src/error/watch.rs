//! Watchpoints: why one was not registered.

use super::{Errno, IN_HANDLER, NO_MEMORY, NoMemory, Refusal, STOPPED, numbered};
use core::fmt;

/// Why a watchpoint was not registered. Nothing has changed then (REG_8).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchError {
    /// The memory cannot be watched, by this host or by this processor.
    CannotWatch {
        /// The first byte.
        at: usize,
        /// Why.
        refusal: Refusal,
    },
    /// All debug registers, this many, are in use.
    NoRegister(usize),
    /// No memory is left.
    NoMemory,
    /// Watchpoints cannot be registered from a probe's handler (REG_18).
    InHandler,
    /// All probes have stopped ([`Probes::stop`](crate::Probes::stop)).
    Stopped,
}

numbered!(WatchError {
    Self::CannotWatch { refusal, .. } => (refusal.errno, refusal.code),
    Self::NoRegister(_) => (Errno::ENOSPC, "watch.no_register"),
    Self::NoMemory => NO_MEMORY,
    Self::InHandler => IN_HANDLER,
    Self::Stopped => STOPPED,
});

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CannotWatch { at, refusal } => write!(f, "memory at {at:#x} cannot be watched: {refusal}"),
            Self::NoRegister(count) => write!(f, "all {count} debug registers are in use"),
            Self::NoMemory => f.write_str("no memory is left"),
            Self::InHandler => f.write_str("watchpoints cannot be registered from a handler"),
            Self::Stopped => f.write_str("all probes have stopped"),
        }
    }
}

impl core::error::Error for WatchError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::CannotWatch { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

impl From<NoMemory> for WatchError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}
