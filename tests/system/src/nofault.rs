//! Access to memory that may not be there: each machine's assembly has an entry in the exception table.

use crate::arch::{Machine, Native};
use probe_core::arch::{Access, MemFault, Memory};

unsafe extern "C" {
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
        // SAFETY: `bytes` may be read; what `addr` may be is the caller's promise to the program it stands
        // for.
        match unsafe { nofault_copy(addr, bytes.as_ptr().expose_provenance(), bytes.len()) } {
            0 => Ok(()),
            _ => Err(MemFault { addr, access: Access::Write }),
        }
    }

    #[inline]
    fn read_usize(&self, addr: usize) -> Result<usize, MemFault> {
        Native::load(addr).ok_or(MemFault { addr, access: Access::Read })
    }

    #[inline]
    fn write_usize(&self, addr: usize, word: usize) -> Result<(), MemFault> {
        // SAFETY: as for `write`.
        match unsafe { Native::store(addr, word) } {
            true => Ok(()),
            false => Err(MemFault { addr, access: Access::Write }),
        }
    }
}

/// Defines [`Machine::load`] and [`Machine::store`] from instructions that access `{word}` at the address in
/// `{word}` or `{to}`, one that sets `{failed}` to 1, and the names of the jump and of the directive for a
/// word.
macro_rules! words_that_may_fault {
    ($reg:ident, $load:literal, $store:literal, $set_failed:literal, $jump:literal, $directive:literal) => {
        #[inline(always)]
        fn load(from: usize) -> Option<usize> {
            let (word, failed): (usize, usize);
            // SAFETY: reads what it can; a fault goes on at `4`, by the entry in the exception table.
            unsafe {
                core::arch::asm!(
                    concat!("2: ", $load),
                    "3:",
                    ".pushsection .text.fixup, \"ax\"",
                    concat!("4: ", $set_failed),
                    concat!($jump, " 3b"),
                    ".popsection",
                    ".pushsection .extable, \"a\"",
                    concat!($directive, " 2b, 4b"),
                    ".popsection",
                    word = inout($reg) from => word,
                    failed = inout($reg) 0_usize => failed,
                    options(readonly, nostack, preserves_flags),
                );
            }
            (failed == 0).then_some(word)
        }

        #[inline(always)]
        unsafe fn store(to: usize, word: usize) -> bool {
            // SAFETY: the caller lets the word be written; a fault goes on at the label.
            unsafe {
                core::arch::asm!(
                    concat!("2: ", $store),
                    ".pushsection .extable, \"a\"",
                    concat!($directive, " 2b, {failed}"),
                    ".popsection",
                    to = in($reg) to,
                    word = in($reg) word,
                    failed = label { return false },
                    options(nostack, preserves_flags),
                );
            }
            true
        }
    };
}
pub(crate) use words_that_may_fault;
