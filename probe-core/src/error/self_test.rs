//! The self-tests: the promise of the host that does not hold.

use super::{RegisterError, TextError};
use crate::addr::CodeAddr;
use core::fmt;

/// A promise of the host that [`Probes::self_test`](crate::Probes::self_test) has found broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SelfTestError {
    /// [`Host::context`](crate::host::Host::context) has no context, or another one each time.
    Context,
    /// [`Host::task`](crate::host::Host::task) has no task, or another one each time.
    Task,
    /// [`Host::alloc_exec`](crate::host::Host::alloc_exec) has no memory.
    NoExec,
    /// [`Host::alloc_exec`](crate::host::Host::alloc_exec) gives memory that is not aligned to its size.
    Unaligned(CodeAddr),
    /// [`Host::write_text`](crate::host::Host::write_text) fails on executable memory.
    Text(TextError),
    /// [`Host::write_text`](crate::host::Host::write_text) has written bytes that are not read back there.
    WriteNotSeen(CodeAddr),
    /// The function that [`Probes::self_test_at`](crate::Probes::self_test_at) was given cannot be probed.
    Register(RegisterError),
    /// The trap frame leaves fewer bytes below the interrupted stack pointer than
    /// [`Arch::TRAP_GAP`](crate::arch::Arch::TRAP_GAP) says.
    Gap {
        /// What it leaves.
        found: usize,
        /// What it owes.
        owed: usize,
    },
    /// A hit in a hit's handler did not arrive, or has overwritten the outer hit's trap frame: the trap's
    /// stack begins anew at each trap (IST), and is no stack for breakpoints.
    Nested,
    /// The breakpoint was passed and no handler ran: traps do not reach
    /// [`Traps::breakpoint`](crate::traps::Traps::breakpoint), or the text that is executed is not the text
    /// that is written.
    NoBreakpoint,
    /// The code behind the original instruction did not run.
    NoStep,
    /// The function's return did not lead through the library.
    NoReturn,
    /// The text is not what it was before.
    TextNotRestored(CodeAddr),
}

impl fmt::Display for SelfTestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Context => f.write_str("the host does not keep to one context"),
            Self::Task => f.write_str("the host does not keep to one task"),
            Self::NoExec => f.write_str("the host has no executable memory"),
            Self::Unaligned(at) => write!(f, "executable memory at {at} is not aligned to its size"),
            Self::Text(error) => write!(f, "executable memory cannot be written: {error}"),
            Self::WriteNotSeen(at) => write!(f, "what is written at {at} is not read there"),
            Self::Register(error) => write!(f, "the function for the test cannot be probed: {error}"),
            Self::Gap { found, owed } => {
                write!(
                    f,
                    "the trap frame leaves {found} bytes below the interrupted stack pointer instead of {owed}"
                )
            }
            Self::Nested => {
                f.write_str("a hit in a handler does not arrive, or overwrites the outer hit's frame")
            }
            Self::NoBreakpoint => f.write_str("a breakpoint in text did not lead to its handler"),
            Self::NoStep => f.write_str("no post handler ran after the instruction in the slot"),
            Self::NoReturn => f.write_str("a followed call did not return through its stub"),
            Self::TextNotRestored(at) => write!(f, "the text at {at} is not what it was before"),
        }
    }
}

impl core::error::Error for SelfTestError {}
