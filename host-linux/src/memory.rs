//! Memory of the interrupted thread, read and written without ever faulting.
//!
//! Plain loads and stores in a short piece of assembly; the SIGSEGV and SIGBUS handlers of this crate end it
//! early where they fault. No system call, so that it is fit for the hit path.

use crate::arch::{self, Regs, nofault_copy};
use probe_core::arch::{Access, MemFault, Memory};

/// The memory of this process.
pub struct ProcessMemory(());

impl ProcessMemory {
    /// Makes one. It works only once the fault handlers are installed; this crate makes it for the host.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

// SAFETY: `nofault_copy` stops at the first byte that cannot be accessed; nothing else is touched.
unsafe impl Memory for ProcessMemory {
    #[inline]
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        // SAFETY: `out` is ours to write; a bad `addr` ends the copy.
        let left = unsafe { nofault_copy(out.as_mut_ptr(), addr as *const u8, out.len()) };
        if left == 0 { Ok(()) } else { Err(MemFault { addr, access: Access::Read }) }
    }

    #[inline]
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        // SAFETY: the core writes where the interrupted instruction would have written, or below the
        // interrupted stack pointer; a bad `addr` ends the copy.
        let left = unsafe { nofault_copy(addr as *mut u8, bytes.as_ptr(), bytes.len()) };
        if left == 0 { Ok(()) } else { Err(MemFault { addr, access: Access::Write }) }
    }
}

/// Copies what is readable from `addr` and returns how many bytes that were.
pub(crate) fn read_some(addr: usize, out: &mut [u8]) -> usize {
    // SAFETY: `out` is ours to write; a bad `addr` ends the copy.
    let left = unsafe { nofault_copy(out.as_mut_ptr(), addr as *const u8, out.len()) };
    out.len() - left
}

/// Writes argument number `index` at a function's entry; `None` where it cannot be written. In a hit.
pub fn set_argument(regs: &mut Regs, index: usize, value: usize) -> Option<()> {
    arch::set_argument(regs, &ProcessMemory::new(), index, value)
}
