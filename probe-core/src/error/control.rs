//! Operations on registered probes: why they failed, and how much has been done.

use super::{Errno, IN_HANDLER, NO_MEMORY, NO_STUBS, NoMemory, NoStubs, Refusal, TEXT, TextError, numbered};
use crate::addr::CodeAddr;
use core::fmt;

/// Why a probe or watchpoint could not be enabled, or why a disabled one still costs a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnableError {
    /// Its text, or the memory that it watches, has gone (CTL_5).
    Gone(CodeAddr),
    /// Text could not be written at its place. A probe that was to be disabled calls no handler all the same.
    Text(TextError),
    /// The memory cannot be watched any more.
    CannotWatch {
        /// The first byte.
        at: usize,
        /// Why.
        refusal: Refusal,
    },
}

numbered!(EnableError {
    Self::Gone(_) => (Errno::EINVAL, "probe.gone"),
    Self::Text(_) => TEXT,
    Self::CannotWatch { refusal, .. } => (refusal.errno, refusal.code),
});

impl fmt::Display for EnableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(at) => write!(f, "what was at {at} has gone"),
            Self::Text(error) => error.fmt(f),
            Self::CannotWatch { at, refusal } => write!(f, "memory at {at:#x} cannot be watched: {refusal}"),
        }
    }
}

/// Why a probe could not be removed. It is registered as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoveError {
    /// Not possible from a probe's handler (REG_13).
    InHandler,
    /// The text at its place could not be written.
    Text(TextError),
}

numbered!(RemoveError {
    Self::InHandler => IN_HANDLER,
    Self::Text(_) => TEXT,
});

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHandler => f.write_str("not possible from a handler"),
            Self::Text(error) => error.fmt(f),
        }
    }
}

/// Why the switch has not been carried out at all places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwitchError {
    /// Not possible from a probe's handler. Nothing has changed.
    InHandler,
    /// The text written to `enabled` is no boolean (CTL_2). Nothing has changed.
    NotABoolean,
    /// Text could not be written there. All other places have been switched.
    Text(TextError),
    /// Memory cannot be watched any more. All else has been switched.
    CannotWatch {
        /// The first byte.
        at: usize,
        /// Why.
        refusal: Refusal,
    },
}

numbered!(SwitchError {
    Self::InHandler => IN_HANDLER,
    Self::NotABoolean => (Errno::EINVAL, "switch.not_a_boolean"),
    Self::Text(_) => TEXT,
    Self::CannotWatch { refusal, .. } => (refusal.errno, refusal.code),
});

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHandler => f.write_str("not possible from a handler"),
            Self::NotABoolean => f.write_str("neither on nor off"),
            Self::Text(error) => error.fmt(f),
            Self::CannotWatch { at, refusal } => write!(f, "memory at {at:#x} cannot be watched: {refusal}"),
        }
    }
}

/// Why some probes that can have jumps have none, or why some breakpoints are not back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JumpError {
    /// Not possible from a probe's handler. Nothing has changed.
    InHandler,
    /// Text could not be written there: that place stays as it was. All others have changed.
    Text(TextError),
}

numbered!(JumpError {
    Self::InHandler => IN_HANDLER,
    Self::Text(_) => TEXT,
});

impl fmt::Display for JumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHandler => f.write_str("not possible from a handler"),
            Self::Text(error) => error.fmt(f),
        }
    }
}

/// Why pools have not become as large as asked for. They keep the size that they have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrowError {
    /// Not possible from a probe's handler.
    InHandler,
    /// No memory is left.
    NoMemory,
    /// No executable memory is left for return stubs.
    NoStubs,
    /// Executable memory could not be written.
    Text(TextError),
}

numbered!(GrowError {
    Self::InHandler => IN_HANDLER,
    Self::NoMemory => NO_MEMORY,
    Self::NoStubs => NO_STUBS,
    Self::Text(_) => TEXT,
});

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHandler => f.write_str("not possible from a handler"),
            Self::NoMemory => f.write_str("no memory is left"),
            Self::NoStubs => f.write_str("no executable memory is left for return stubs"),
            Self::Text(error) => error.fmt(f),
        }
    }
}

impl From<NoMemory> for GrowError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<NoStubs> for GrowError {
    fn from(error: NoStubs) -> Self {
        match error {
            NoStubs::Memory => Self::NoMemory,
            NoStubs::Exec => Self::NoStubs,
            NoStubs::Text(error) => Self::Text(error),
        }
    }
}

impl core::error::Error for EnableError {}
impl core::error::Error for RemoveError {}
impl core::error::Error for SwitchError {}
impl core::error::Error for JumpError {}
impl core::error::Error for GrowError {}
