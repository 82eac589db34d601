//! Registering: why one probe, or a batch of them, was not registered.

use super::{
    Errno, IN_HANDLER, NO_MEMORY, NO_STUBS, NoMemory, NoStubs, Refusal, STOPPED, TEXT, TextError, numbered,
};
use crate::addr::CodeAddr;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Why a probe was not registered. Nothing has changed then (REG_8).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// No symbol has this name.
    NoSymbol(Box<str>),
    /// Several symbols have this name: name one by its address, or use
    /// [`Probes::candidates`](crate::Probes::candidates).
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
        /// The symbol's name, or the name that was asked for.
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
    /// The bytes at an address between the symbol's start and the place are no instruction.
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
    /// A return probe or jprobe where no call arrives (REG_19).
    NotCalled {
        /// The address.
        at: CodeAddr,
        /// How control arrives there.
        refusal: Refusal,
    },
    /// The function has a jprobe already.
    SecondJprobe(CodeAddr),
    /// The private data of a return probe is larger than [`MAX_DATA_LEN`](crate::limits::MAX_DATA_LEN).
    DataTooBig(usize),
    /// No executable memory is left within reach of the address.
    NoSlot(CodeAddr),
    /// No executable memory is left for the stubs of a return probe.
    NoStubs,
    /// No memory is left.
    NoMemory,
    /// Text could not be written or read.
    Text(TextError),
    /// Probes cannot be registered from a probe's handler (REG_18).
    InHandler,
    /// All probes have stopped ([`Probes::stop`](crate::Probes::stop)).
    Stopped,
}

numbered!(RegisterError {
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
    Self::Refused { refusal, .. } | Self::NotCalled { refusal, .. } => (refusal.errno, refusal.code),
    Self::NotEntry(_) => (Errno::EINVAL, "place.not_entry"),
    Self::SecondJprobe(_) => (Errno::EEXIST, "jprobe.second"),
    Self::DataTooBig(_) => (Errno::E2BIG, "kretprobe.data_too_big"),
    Self::NoSlot(_) => (Errno::ENOMEM, "memory.no_slot"),
    Self::NoStubs => NO_STUBS,
    Self::NoMemory => NO_MEMORY,
    Self::Text(_) => TEXT,
    Self::InHandler => IN_HANDLER,
    Self::Stopped => STOPPED,
});

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
            Self::NoStubs => f.write_str("no executable memory is left for return stubs"),
            Self::NoMemory => f.write_str("no memory is left"),
            Self::Text(error) => error.fmt(f),
            Self::InHandler => f.write_str("probes cannot be registered from a handler"),
            Self::Stopped => f.write_str("all probes have stopped"),
        }
    }
}

impl core::error::Error for RegisterError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Refused { refusal, .. } | Self::NotCalled { refusal, .. } => Some(refusal),
            Self::Text(error) => Some(error),
            _ => None,
        }
    }
}

impl From<NoMemory> for RegisterError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<NoStubs> for RegisterError {
    fn from(error: NoStubs) -> Self {
        match error {
            NoStubs::Memory => Self::NoMemory,
            NoStubs::Exec => Self::NoStubs,
            NoStubs::Text(error) => Self::Text(error),
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
