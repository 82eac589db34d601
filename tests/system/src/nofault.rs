//! Access to memory that may not be there: each machine's assembly has an entry in the exception table.

use probe_core::arch::{Access, MemFault, Memory};

unsafe extern "C" {
    /// Loads the word at `from` into `to`; 0, or 1 if that faulted.
    fn nofault_load(from: usize, to: *mut usize) -> usize;
    /// Stores `word` at `to`; 0, or 1 if that faulted.
    fn nofault_store(to: usize, word: usize) -> usize;
    /// Copies `len` bytes from the lowest on; returns how many were left when a byte faulted.
    fn nofault_copy(to: usize, from: usize, len: usize) -> usize;

    static __extable_start: [usize; 2];
    static __extable_end: [usize; 2];
}

/// Where to go on after a fault at `pc`, if that is one of this module's instructions.
pub fn fixup(pc: usize) -> Option<usize> {
    let len =
        ((&raw const __extable_end).addr() - (&raw const __extable_start).addr()) / size_of::<[usize; 2]>();
    // SAFETY: the linker script puts the table between the two symbols.
    let table = unsafe { core::slice::from_raw_parts(&raw const __extable_start, len) };
    table.iter().find(|entry| entry[0] == pc).map(|entry| entry[1])
}

/// Reads bytes and returns how many could be read.
pub fn read(from: usize, out: &mut [u8]) -> usize {
    // SAFETY: `out` may be written; `from` may be anything.
    out.len() - unsafe { nofault_copy(out.as_mut_ptr().expose_provenance(), from, out.len()) }
}

/// The memory of whatever was interrupted.
pub struct KernelMemory;

// SAFETY: every access has an entry in the exception table.
unsafe impl Memory for KernelMemory {
    #[inline]
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        if let Ok(word) = <&mut [u8; size_of::<usize>()]>::try_from(&mut *out) {
            *word = self.read_usize(addr)?.to_ne_bytes();
            return Ok(());
        }
        match read(addr, out) {
            len if len == out.len() => Ok(()),
            _ => Err(MemFault { addr, access: Access::Read }),
        }
    }

    #[inline]
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        if let Ok(word) = bytes.try_into() {
            return self.write_usize(addr, usize::from_ne_bytes(word));
        }
        // SAFETY: `bytes` may be read; what `addr` may be is the caller's promise to the program it stands for.
        match unsafe { nofault_copy(addr, bytes.as_ptr().expose_provenance(), bytes.len()) } {
            0 => Ok(()),
            _ => Err(MemFault { addr, access: Access::Write }),
        }
    }

    #[inline]
    fn read_usize(&self, addr: usize) -> Result<usize, MemFault> {
        let mut word = 0;
        // SAFETY: `word` may be written; `addr` may be anything.
        match unsafe { nofault_load(addr, &raw mut word) } {
            0 => Ok(word),
            _ => Err(MemFault { addr, access: Access::Read }),
        }
    }

    #[inline]
    fn write_usize(&self, addr: usize, word: usize) -> Result<(), MemFault> {
        // SAFETY: as for `write`.
        match unsafe { nofault_store(addr, word) } {
            0 => Ok(()),
            _ => Err(MemFault { addr, access: Access::Write }),
        }
    }
}
