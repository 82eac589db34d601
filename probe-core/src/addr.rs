//! Addresses of code.

use core::fmt;

/// The address of a byte of code in the address space that is probed.
///
/// A plain number: nothing is dereferenced through it except by the host.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct CodeAddr(usize);

impl CodeAddr {
    /// Wraps a number of bytes from address 0.
    pub const fn new(addr: usize) -> Self {
        Self(addr)
    }

    /// The number of bytes from address 0.
    pub const fn as_usize(self) -> usize {
        self.0
    }

    /// The address `bytes` further up, wrapping at the end of the address space.
    pub const fn wrapping_add(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The address `bytes` further up or down, wrapping at the end of the address space.
    pub const fn wrapping_offset(self, bytes: isize) -> Self {
        Self(self.0.wrapping_add_signed(bytes))
    }

    /// The address `bytes` further up, or `None` where that leaves the address space.
    pub const fn checked_add(self, bytes: usize) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(addr) => Some(Self(addr)),
            None => None,
        }
    }

    /// The signed distance in bytes from `origin` to this address, wrapping.
    pub const fn offset_from(self, origin: Self) -> isize {
        self.0.wrapping_sub(origin.0) as isize
    }

    /// The distance in bytes between two addresses, whichever comes first.
    pub const fn abs_diff(self, other: Self) -> usize {
        self.0.abs_diff(other.0)
    }
}

impl fmt::Debug for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(self, f)
    }
}

impl fmt::Display for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(self, f)
    }
}

impl fmt::LowerHex for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl From<usize> for CodeAddr {
    fn from(addr: usize) -> Self {
        Self(addr)
    }
}
