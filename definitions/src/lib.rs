//! Probe definitions: the grammar that tracing people already type.
//!
//! A definition is one line in the style of the kernel's `kprobe_events` and `uprobe_events` files:
//!
//! ```text
//! p[:[GROUP/]NAME]            [OBJECT:]SYMBOL[+OFFSET] [FETCHARG]…
//! r[MAXACTIVE][:[GROUP/]NAME] [OBJECT:]SYMBOL          [FETCHARG]…
//! p[:[GROUP/]NAME]            [OBJECT:]SYMBOL%return   [FETCHARG]…
//! p[:[GROUP/]NAME]            OBJECT:0xFILEOFFSET      [FETCHARG]…
//! ```
//!
//! SYMBOL may be a shell-style glob (`mem*`); in double quotes it is taken literally and may hold blanks. A
//! FETCHARG is `[NAME=]FETCH[:TYPE]`; a FETCH is one of `$argN`, `$retval`, `$stackN`, `$stack`, `$comm`,
//! `%REGISTER`, `@SYMBOL[±OFFSET]`, `@ADDRESS`, `\NUMBER`, `\"TEXT"` or `±[u]OFFSET(FETCH)`; a TYPE is one of
//! `u8…u64`, `s8…s64`, `x8…x64`, `char`, `string`, `ustring`, `symbol`, `symstr`, `bWIDTH@OFFSET/CONTAINER`,
//! each with an optional `[COUNT]`. The same reads all memory: `u` and `ustring` change nothing.
//!
//! Nothing in here touches a program: text in, [`Definition`] or [`DefError`] out. The command `probe` and
//! the kernels of `probe-kernel-kit` share it; what a name matches is theirs to say.
#![no_std]

extern crate alloc;

mod error;
mod fetch;
mod glob;
mod parse;
mod suggest;
mod word;

pub use error::DefError;
pub use glob::{Glob, glob_matches};
pub use suggest::near_matches;

use alloc::string::String;
use alloc::vec::Vec;

/// The longest array that one argument may ask for, as in the kernel.
pub const MAX_ARRAY: usize = 64;
/// The most arguments that one definition may have, as in the kernel.
pub const MAX_ARGS: usize = 128;
/// The most frames of a stack.
pub const MAX_STACK: usize = 128;
/// The deepest nesting of `±OFFSET(…)`.
pub const MAX_DEREFS: usize = 16;
/// The longest `\"TEXT"`, in bytes.
pub const MAX_TEXT: usize = 1024;
/// The highest N of `$argN`: the entry values of a return probe are kept in a fixed array of this length.
pub const MAX_ARGUMENT: usize = 12;

/// One parsed probe definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The line as it was typed.
    pub text: String,
    /// Where it fires.
    pub kind: Kind,
    /// The name behind `p:` or `r:`, with its group if it was given.
    pub name: Option<String>,
    /// The object that holds the symbol: a path, a file name or a soname.
    pub object: Option<String>,
    /// The place within the object.
    pub place: Place,
    /// The bytes of `text` that name object and place, for messages.
    pub place_span: (usize, usize),
    /// What to fetch at a hit.
    pub args: Vec<Argument>,
    /// Which end of a time between two places it is, if it is one; no text says so.
    pub end: Option<End>,
}

/// An end of a time between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where it begins: anew at each hit.
    From,
    /// Where it ends, if it has begun in the same thread.
    To,
}

/// What the stack is called among a probe's arguments.
pub const STACK: &str = "stack";

/// Whether a probe fires at its place or when the function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `p`: each time the place is executed.
    Hit,
    /// `r` or `%return`: each time a call of the function returns.
    Return {
        /// How many calls may be in flight; `None` lets the library choose.
        max_active: Option<u32>,
    },
}

/// A place within an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A symbol and the distance in bytes from its start.
    Symbol {
        /// The symbol's name, mangled or demangled.
        name: String,
        /// Bytes from the symbol's start.
        offset: u64,
    },
    /// Every function whose name matches.
    Glob(Glob),
    /// An offset into the object's file, as `uprobe_events` takes it.
    FileOffset(u64),
}

/// One fetch argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The name to print: as typed; else that of the source (`arg2` for `$arg2`, `retval`, `di` for `%di`),
    /// or `value1`, `value2`, … by position if the source has none.
    pub name: String,
    /// Where the value comes from.
    pub fetch: Fetch,
    /// How the value is read and printed.
    pub ty: Type,
    /// The bytes of the definition's text that it was parsed from, for messages.
    pub span: (usize, usize),
}

/// Where a value comes from: a source, then a chain of memory reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The innermost value.
    pub source: Source,
    /// Offsets of the memory reads around it, innermost first: `+8(-16(%sp))` is `[-16, 8]`.
    pub derefs: Vec<i64>,
}

/// The innermost value of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `$argN`, counted from 0: the function's integer argument, as it was at entry.
    Argument(usize),
    /// `$retval`.
    ReturnValue,
    /// `$stackN`: the Nth word above the stack pointer.
    Stack(usize),
    /// `$stack`: the stack pointer.
    StackPointer,
    /// `$comm`: the thread's name.
    Comm,
    /// `%REGISTER`, by the number the architecture gives it.
    Register(usize),
    /// `@SYMBOL±OFFSET`: the address of a symbol (the memory read is the first of the derefs).
    Symbol {
        /// The symbol's name.
        name: String,
        /// Bytes added to its address.
        offset: i64,
    },
    /// `@ADDRESS` (the memory read is the first of the derefs) or `\NUMBER` (no memory read).
    Constant(u64),
    /// `\"TEXT"`.
    Text(String),
    /// `--stack`: the frames that the thread is in, at most so many.
    Frames(usize),
}

/// How a value is read and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    /// The type of one element.
    pub scalar: Scalar,
    /// The number of elements, for an array.
    pub count: Option<usize>,
}

/// The type of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// `u8`, `u16`, `u32`, `u64`: decimal.
    Unsigned(Width),
    /// `s8`, `s16`, `s32`, `s64`: signed decimal.
    Signed(Width),
    /// `x8`, `x16`, `x32`, `x64`: hexadecimal.
    Hex(Width),
    /// `char`: one byte, as a character.
    Char,
    /// `string`: the bytes at an address, up to a NUL.
    String,
    /// `symbol`: an address, printed as symbol+offset.
    Symbol,
    /// `symstr`: the same, printed as a string is.
    SymbolText,
    /// `bWIDTH@OFFSET/CONTAINER`: some bits of a word, decimal.
    Bits(Bits),
    /// A stack: why it has no more frames, and the frames, innermost first, in words of 64 bits.
    Stack,
}

/// Bits of a word, counted from its lowest, whatever the byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// How many; at least 1.
    pub width: u8,
    /// The number of bits below them; width and offset together fit into the word.
    pub offset: u8,
    /// The word.
    pub container: Width,
}

impl Bits {
    /// The bits of `word`.
    pub const fn of(self, word: u64) -> u64 {
        (word >> self.offset) & (u64::MAX >> (64 - self.width))
    }
}

/// The width of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 8 bits.
    W8,
    /// 16 bits.
    W16,
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// The number of bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::W8 => 1,
            Self::W16 => 2,
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }
}

impl Scalar {
    /// The number of bytes one element takes in memory; 0 for a string.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Unsigned(w) | Self::Signed(w) | Self::Hex(w) => w.bytes(),
            Self::Char => 1,
            Self::Bits(bits) => bits.container.bytes(),
            Self::Symbol | Self::SymbolText => size_of::<usize>(),
            Self::String | Self::Stack => 0,
        }
    }
}

impl Type {
    /// The type of an argument without one: a machine word in hexadecimal.
    pub const WORD: Self = Self {
        scalar: Scalar::Hex(if size_of::<usize>() == 8 { Width::W64 } else { Width::W32 }),
        count: None,
    };
}

impl Definition {
    /// Whether it is a return probe.
    pub const fn is_return(&self) -> bool {
        matches!(self.kind, Kind::Return { .. })
    }

    /// The same as an end of a time between two places.
    #[must_use]
    pub fn with_end(self, end: Option<End>) -> Self {
        Self { end, ..self }
    }

    /// Whether its events say how long something took.
    pub fn is_timed(&self) -> bool {
        match self.end {
            None => self.is_return(),
            Some(end) => end == End::To,
        }
    }

    /// The same with the stack as another argument, of at most `depth` frames.
    #[must_use]
    pub fn with_stack(mut self, depth: usize) -> Self {
        let fetch = Fetch { source: Source::Frames(depth.clamp(1, MAX_STACK)), derefs: Vec::new() };
        let ty = Type { scalar: Scalar::Stack, count: None };
        self.args.push(Argument { name: STACK.into(), fetch, ty, span: (0, 0) });
        self
    }

    /// An error about this definition's object or symbol, with the caret under it.
    pub fn place_error(&self, sentence: impl Into<String>) -> DefError {
        DefError::new(&self.text, self.place_span, sentence)
    }
}
