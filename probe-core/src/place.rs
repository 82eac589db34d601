//! Where a probe goes: a symbol with an offset, or an address.

use crate::addr::CodeAddr;
use alloc::boxed::Box;
use core::fmt;

/// A place as the user names it.
///
/// ```
/// use probe_core::{CodeAddr, Place};
///
/// let by_name = Place::symbol("do_fork");
/// let inside = Place::symbol("memcpy").in_module("libc.so.6").offset(4);
/// let by_address = Place::addr(CodeAddr::new(0x1000));
/// assert_eq!(inside.to_string(), "libc.so.6:memcpy+0x4");
/// # let _ = (by_name, by_address);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub(crate) target: Target,
    pub(crate) offset: isize,
}

/// The two ways to name a place: never both, never neither (REG_1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Symbol { name: Box<str>, module: Option<Box<str>> },
    Address { at: CodeAddr, is_checked: bool },
}

impl Place {
    /// The entry of the function `name`, past what [`Arch::entry_offset`](crate::arch::Arch::entry_offset)
    /// skips.
    pub fn symbol(name: &str) -> Self {
        Self { target: Target::Symbol { name: name.into(), module: None }, offset: 0 }
    }

    /// An address; a symbol must cover it, so that the instruction's boundary can be checked.
    pub const fn addr(at: CodeAddr) -> Self {
        Self { target: Target::Address { at, is_checked: true }, offset: 0 }
    }

    /// An address that no symbol needs to cover.
    ///
    /// # Safety
    /// An instruction starts at `at`, and it is code of the running program.
    pub const unsafe fn unchecked(at: CodeAddr) -> Self {
        Self { target: Target::Address { at, is_checked: false }, offset: 0 }
    }

    /// Moves the place `bytes` on. Past the symbol's end, or before its start, registration answers EINVAL
    /// (REG_5).
    #[must_use]
    pub const fn offset(mut self, bytes: isize) -> Self {
        self.offset = bytes;
        self
    }

    /// Only symbols of this module or shared object count. No effect on an address.
    #[must_use]
    pub fn in_module(mut self, module_name: &str) -> Self {
        if let Target::Symbol { module, .. } = &mut self.target {
            *module = Some(module_name.into());
        }
        self
    }
}

impl From<&str> for Place {
    fn from(name: &str) -> Self {
        Self::symbol(name)
    }
}

impl From<CodeAddr> for Place {
    fn from(at: CodeAddr) -> Self {
        Self::addr(at)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Symbol { name, module: Some(module) } => write!(f, "{module}:{name}")?,
            Target::Symbol { name, module: None } => f.write_str(name)?,
            Target::Address { at, .. } => write!(f, "{at}")?,
        }
        match self.offset {
            0 => Ok(()),
            offset if offset < 0 => write!(f, "-{:#x}", offset.unsigned_abs()),
            offset => write!(f, "+{offset:#x}"),
        }
    }
}
