//! Errors: one taxonomy on all architectures.
//!
//! Every error has an errno, a stable reason code and one sentence (REG_9). A registration that fails leaves
//! nothing changed: not a byte of text, not a line of the listing, not an allocation (REG_8). An operation on
//! many registered probes ([`Probes::switch`](crate::Probes::switch)) does all that it can, and reports the
//! first failure. Each operation has an error type of its own, whose variants are the ways in which it fails.

mod control;
mod register;
mod self_test;
mod stop;
mod watch;

use crate::addr::CodeAddr;
pub use control::{EnableError, GrowError, JumpError, RemoveError, SwitchError};
use core::fmt;
pub use register::{BatchError, RegisterError};
pub use self_test::SelfTestError;
pub use stop::{Remains, StopError};
pub use watch::WatchError;

/// The methods `errno` and `code` of an error, from a list that names both for each variant.
macro_rules! numbered {
    ($error:ident { $($variant:pat => $errno_and_code:expr),+ $(,)? }) => {
        impl $error {
            const fn errno_and_code(&self) -> (Errno, &'static str) {
                match self {
                    $($variant => $errno_and_code,)+
                }
            }

            /// The error number.
            pub const fn errno(&self) -> Errno {
                self.errno_and_code().0
            }

            /// The stable reason code.
            pub const fn code(&self) -> &'static str {
                self.errno_and_code().1
            }
        }
    };
}
use numbered;

const NO_MEMORY: (Errno, &str) = (Errno::ENOMEM, "memory.none");
const NO_STUBS: (Errno, &str) = (Errno::ENOMEM, "memory.no_stubs");
const TEXT: (Errno, &str) = (Errno::EFAULT, "text.access");
const IN_HANDLER: (Errno, &str) = (Errno::EBUSY, "context.in_handler");
const STOPPED: (Errno, &str) = (Errno::ESHUTDOWN, "probes.stopped");

/// The error numbers of the C interface, with Linux's values on the architectures that we support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Errno {
    /// No such symbol.
    ENOENT = 2,
    /// Out of memory or slots.
    ENOMEM = 12,
    /// A text write or read failed.
    EFAULT = 14,
    /// Not possible from a handler, or in use.
    EBUSY = 16,
    /// A second jprobe on one function.
    EEXIST = 17,
    /// Invalid argument, place or state.
    EINVAL = 22,
    /// All debug registers are in use.
    ENOSPC = 28,
    /// Not an instruction boundary, or somebody else's breakpoint.
    EILSEQ = 84,
    /// An instruction that can be neither stepped nor emulated.
    EOPNOTSUPP = 95,
    /// A name that matches several symbols.
    EADDRNOTAVAIL = 99,
    /// All probes have stopped.
    ESHUTDOWN = 108,
    /// More private data than a return instance may have.
    E2BIG = 7,
}

impl Errno {
    /// The positive number.
    pub const fn as_i32(self) -> i32 {
        self as i32
    }
}

/// Why a backend does not probe an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// EOPNOTSUPP, EINVAL or EILSEQ.
    pub errno: Errno,
    /// A stable code: the architecture and the instruction class, `aarch64.exclusive`.
    pub code: &'static str,
    /// One sentence, lower case, without full stop: what the instruction is and which rule forbids it.
    pub sentence: &'static str,
}

impl Refusal {
    /// A refusal with EOPNOTSUPP.
    pub const fn unsupported(code: &'static str, sentence: &'static str) -> Self {
        Self { errno: Errno::EOPNOTSUPP, code, sentence }
    }

    /// A refusal with EINVAL: the place is wrong, whatever the backend could do.
    pub const fn invalid(code: &'static str, sentence: &'static str) -> Self {
        Self { errno: Errno::EINVAL, code, sentence }
    }

    /// A refusal with EILSEQ: no instruction starts here.
    pub const fn not_an_instruction(code: &'static str, sentence: &'static str) -> Self {
        Self { errno: Errno::EILSEQ, code, sentence }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.sentence, self.code)
    }
}

impl core::error::Error for Refusal {}

/// Why text could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextError {
    /// Nothing is mapped at the address.
    Unmapped(CodeAddr),
    /// The host's way of writing text failed there, with the operating system's error number.
    Denied(CodeAddr, i32),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmapped(at) => write!(f, "no text is mapped at {at}"),
            Self::Denied(at, os) => write!(f, "text at {at} cannot be written (os error {os})"),
        }
    }
}

impl core::error::Error for TextError {}

/// An allocation failed. Each operation's error has a variant for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoMemory;

/// Return stubs could not be had.
#[derive(Clone, Debug)]
pub(crate) enum NoStubs {
    /// No memory for what is kept of them.
    Memory,
    /// No executable memory.
    Exec,
    /// Executable memory could not be written.
    Text(TextError),
}

impl From<NoMemory> for NoStubs {
    fn from(_: NoMemory) -> Self {
        Self::Memory
    }
}

impl From<TextError> for NoStubs {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}
