//! Errors: one taxonomy on all architectures.
//!
//! Every error has an errno, a stable reason code and one sentence (REG_9). No error leaves anything
//! changed: not a byte of text, not a line of the listing, not an allocation (REG_8).

use crate::addr::CodeAddr;
use core::fmt;

/// The error numbers of the C interface, with Linux's values on the architectures that we support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[expect(clippy::upper_case_acronyms, reason = "the field's names")]
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
    /// Not an instruction boundary, or somebody else's breakpoint.
    EILSEQ = 84,
    /// An instruction that can be neither stepped nor emulated.
    EOPNOTSUPP = 95,
    /// A name that matches several symbols.
    EADDRNOTAVAIL = 99,
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
