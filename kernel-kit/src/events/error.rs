//! Why an event was refused.

use alloc::string::String;
use core::fmt;
use probe_core::error::{EnableError, Errno, RegisterError};
use probe_definitions::DefError;

/// Why a line of `kprobe_events` was refused, or an event is not to be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum EventError {
    /// It is no definition; what is wrong, with the place in the line.
    Definition(DefError),
    /// There is an event of this name already.
    Exists(String),
    /// There is no event of this name.
    Unknown(String),
    /// The probe was refused.
    Register(RegisterError),
    /// The probe could not be switched.
    Enable(EnableError),
    /// A handler asks.
    InHandler,
}

impl EventError {
    /// The error number.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Definition(_) => Errno::EINVAL,
            Self::Exists(_) => Errno::EEXIST,
            Self::Unknown(_) => Errno::ENOENT,
            Self::Register(error) => error.errno(),
            Self::Enable(error) => error.errno(),
            Self::InHandler => Errno::EBUSY,
        }
    }
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Definition(error) => error.fmt(f),
            Self::Exists(name) => write!(f, "there is an event `{name}` already"),
            Self::Unknown(name) => write!(f, "there is no event `{name}`"),
            Self::Register(error) => error.fmt(f),
            Self::Enable(error) => error.fmt(f),
            Self::InHandler => f.write_str("events are not changed or read in a handler"),
        }
    }
}

impl core::error::Error for EventError {}
