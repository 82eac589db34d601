//! Errors: one taxonomy on all architectures.
//!
//! Every error has an errno, a stable reason code and one sentence (REG_9). A registration that fails leaves nothing
//! changed: not a byte of text, not a line of the listing, not an allocation (REG_8). An operation on many probes that
//! are registered already ([`Probes::switch`](crate::Probes::switch)) does what it can, and reports the first failure.

use crate::addr::CodeAddr;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

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

/// Why a probe was not registered. Nothing has changed then (REG_8).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// No symbol has this name.
    NoSymbol(Box<str>),
    /// Several symbols have this name: name one by its address, or use [`Probes::resolve_all`](crate::Probes::resolve_all).
    Ambiguous {
        /// The name.
        name: Box<str>,
        /// Where the symbols start, in ascending order.
        candidates: Vec<CodeAddr>,
    },
    /// No symbol covers the address, so nobody can tell where instructions start there.
    NoSymbolCovers(CodeAddr),
    /// The offset leaves the symbol.
    OutsideSymbol {
        /// The symbol's name, or what was given for it.
        name: Box<str>,
        /// The offset in bytes.
        offset: isize,
        /// The symbol's length in bytes.
        len_bytes: usize,
    },
    /// The address is not text that may be patched.
    NotText(CodeAddr),
    /// The host forbids probes at the address.
    Blacklisted(CodeAddr),
    /// The address is not a multiple of the instructions' alignment.
    Misaligned(CodeAddr),
    /// The address lies inside an instruction.
    InsideInstruction {
        /// The address.
        at: CodeAddr,
        /// Where that instruction starts.
        start: CodeAddr,
    },
    /// On the way from the symbol's start to the address stands something that is no instruction.
    Undecodable {
        /// The address.
        at: CodeAddr,
        /// Where decoding ended.
        stuck: CodeAddr,
    },
    /// A breakpoint of somebody else stands there.
    ForeignBreakpoint(CodeAddr),
    /// The backend does not probe this instruction.
    Refused {
        /// The address.
        at: CodeAddr,
        /// What it is and which rule forbids it.
        refusal: Refusal,
    },
    /// A return probe or jprobe anywhere but at a function's entry.
    NotEntry(CodeAddr),
    /// A return probe or jprobe where no call comes (REG_19).
    NotCalled {
        /// The address.
        at: CodeAddr,
        /// How control arrives there.
        refusal: Refusal,
    },
    /// The function has a jprobe already.
    SecondJprobe(CodeAddr),
    /// The private data of a return probe is larger than [`MAX_DATA_LEN`](crate::MAX_DATA_LEN).
    DataTooBig(usize),
    /// No executable memory is left within reach of the address.
    NoSlot(CodeAddr),
    /// No memory is left.
    NoMemory,
    /// Text could not be written or read.
    Text(TextError),
    /// Probes cannot be registered from a probe's handler (REG_18).
    InHandler,
    /// The memory cannot be watched, by this host or by this processor.
    CannotWatch {
        /// The first byte.
        at: usize,
        /// Why.
        refusal: Refusal,
    },
    /// All of so many debug registers are in use.
    NoWatchRegister(usize),
}

impl RegisterError {
    const fn errno_and_code(&self) -> (Errno, &'static str) {
        match self {
            Self::NoSymbol(_) => (Errno::ENOENT, "place.no_symbol"),
            Self::Ambiguous { .. } => (Errno::EADDRNOTAVAIL, "place.ambiguous"),
            Self::NoSymbolCovers(_) => (Errno::ENOENT, "place.no_symbol_covers"),
            Self::OutsideSymbol { .. } => (Errno::EINVAL, "place.outside_symbol"),
            Self::NotText(_) => (Errno::EINVAL, "place.not_text"),
            Self::Blacklisted(_) => (Errno::EINVAL, "place.blacklisted"),
            Self::Misaligned(_) => (Errno::EILSEQ, "place.misaligned"),
            Self::InsideInstruction { .. } => (Errno::EILSEQ, "place.inside_instruction"),
            Self::Undecodable { .. } => (Errno::EILSEQ, "place.undecodable"),
            Self::ForeignBreakpoint(_) => (Errno::EILSEQ, "place.foreign_breakpoint"),
            Self::Refused { refusal, .. }
            | Self::NotCalled { refusal, .. }
            | Self::CannotWatch { refusal, .. } => (refusal.errno, refusal.code),
            Self::NoWatchRegister(_) => (Errno::ENOSPC, "watch.no_register"),
            Self::NotEntry(_) => (Errno::EINVAL, "place.not_entry"),
            Self::SecondJprobe(_) => (Errno::EEXIST, "jprobe.second"),
            Self::DataTooBig(_) => (Errno::E2BIG, "kretprobe.data_too_big"),
            Self::NoSlot(_) => (Errno::ENOMEM, "memory.no_slot"),
            Self::NoMemory => (Errno::ENOMEM, "memory.none"),
            Self::Text(_) => (Errno::EFAULT, "text.access"),
            Self::InHandler => (Errno::EBUSY, "context.in_handler"),
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

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSymbol(name) => write!(f, "there is no symbol {name}"),
            Self::Ambiguous { name, candidates } => {
                write!(f, "{} symbols are called {name}:", candidates.len())?;
                candidates.iter().try_for_each(|at| write!(f, " {at}"))
            }
            Self::NoSymbolCovers(at) => write!(f, "no symbol covers {at}"),
            Self::OutsideSymbol { name, offset, len_bytes } => {
                write!(f, "offset {offset} is outside {name}, which is {len_bytes} bytes long")
            }
            Self::NotText(at) => write!(f, "{at} is not text that can be probed"),
            Self::Blacklisted(at) => write!(f, "probes are forbidden at {at}"),
            Self::Misaligned(at) => write!(f, "{at} is not aligned to an instruction"),
            Self::InsideInstruction { at, start } => {
                write!(f, "{at} is inside the instruction that starts at {start}")
            }
            Self::Undecodable { at, stuck } => {
                write!(f, "the way to {at} cannot be decoded: there is no instruction at {stuck}")
            }
            Self::ForeignBreakpoint(at) => write!(f, "somebody else's breakpoint stands at {at}"),
            Self::Refused { at, refusal } => write!(f, "the instruction at {at} cannot be probed: {refusal}"),
            Self::NotEntry(at) => write!(f, "{at} is not the entry of a function"),
            Self::NotCalled { at, refusal } => {
                write!(f, "no return probe or jprobe can stand at {at}: {refusal}")
            }
            Self::SecondJprobe(at) => write!(f, "the function at {at} has a jprobe already"),
            Self::DataTooBig(len) => write!(f, "private data of {len} bytes is too big"),
            Self::NoSlot(at) => write!(f, "no executable memory is left within reach of {at}"),
            Self::NoMemory => f.write_str("no memory is left"),
            Self::Text(error) => error.fmt(f),
            Self::InHandler => f.write_str("probes cannot be registered from a handler"),
            Self::CannotWatch { at, refusal } => write!(f, "memory at {at:#x} cannot be watched: {refusal}"),
            Self::NoWatchRegister(count) => write!(f, "all {count} debug registers are in use"),
        }
    }
}

impl core::error::Error for RegisterError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Refused { refusal, .. }
            | Self::NotCalled { refusal, .. }
            | Self::CannotWatch { refusal, .. } => Some(refusal),
            Self::Text(error) => Some(error),
            _ => None,
        }
    }
}

impl From<TextError> for RegisterError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}

/// Why a batch was not registered: none of its probes is (REG_12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchError {
    /// The first probe that failed, counted from 0.
    pub index: usize,
    /// Why.
    pub error: RegisterError,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "probe {} of the batch: {}", self.index, self.error)
    }
}

impl core::error::Error for BatchError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Why a registered probe, or all of them, could not be enabled, disabled or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// Not possible from a probe's handler (REG_13).
    InHandler,
    /// The probe's text has gone (CTL_5).
    Gone(CodeAddr),
    /// Text could not be written at a probe's place. A probe that was to be disabled calls no handler all the same; the switch
    /// has been carried out at all other places.
    Text(TextError),
    /// The text given for the switch is no boolean (CTL_2).
    NotABoolean,
    /// A watchpoint's memory cannot be watched any more.
    CannotWatch {
        /// The first byte.
        at: usize,
        /// Why.
        refusal: Refusal,
    },
}

impl ControlError {
    const fn errno_and_code(&self) -> (Errno, &'static str) {
        match self {
            Self::InHandler => (Errno::EBUSY, "context.in_handler"),
            Self::Gone(_) => (Errno::EINVAL, "probe.gone"),
            Self::Text(_) => (Errno::EFAULT, "text.access"),
            Self::NotABoolean => (Errno::EINVAL, "switch.not_a_boolean"),
            Self::CannotWatch { refusal, .. } => (refusal.errno, refusal.code),
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

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHandler => f.write_str("not possible from a handler"),
            Self::Gone(at) => write!(f, "the text at {at} has gone"),
            Self::Text(error) => error.fmt(f),
            Self::NotABoolean => f.write_str("neither on nor off"),
            Self::CannotWatch { at, refusal } => write!(f, "memory at {at:#x} cannot be watched: {refusal}"),
        }
    }
}

impl core::error::Error for ControlError {}

impl From<TextError> for ControlError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}
