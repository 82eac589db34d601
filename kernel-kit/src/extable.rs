//! Access to memory that may not be there: an instruction that faults has an entry in the exception table,
//! which says where to go on.
//!
//! The kernel's fault handler asks [`fixup`] before anything else, and goes on there. The table is the
//! section `probe_extable`: the linker knows where it begins and ends, so a linker script need not name it.
//! One that discards what it does not name has to: `probe_extable : { KEEP(*(probe_extable)) }`.
//!
//! An entry is two words of 32 bits, each the distance from itself: of the instruction, and of where to go
//! on.

use core::ptr;
use probe_core::arch::{Access, MemFault, Memory};

/// An instruction that may fault, and where to go on: distances from each field.
#[repr(C)]
struct Entry {
    instruction: i32,
    fixup: i32,
}

/// Where a field leads.
fn target(field: &i32) -> usize {
    ptr::from_ref(field).addr().wrapping_add_signed(*field as isize)
}

unsafe extern "C" {
    #[link_name = "__start_probe_extable"]
    static START: [Entry; 0];
    #[link_name = "__stop_probe_extable"]
    static END: [Entry; 0];
}

/// Where to go on after a fault at `pc`, if that is one of this module's instructions. No lock, no
/// allocation.
pub fn fixup(pc: usize) -> Option<usize> {
    let start = (&raw const START).cast::<Entry>();
    let len = ((&raw const END).addr() - start.addr()) / size_of::<Entry>();
    // SAFETY: the linker puts the table between the two symbols, and nobody writes there.
    let table = unsafe { core::slice::from_raw_parts(start, len) };
    table.iter().find(|entry| target(&entry.instruction) == pc).map(|entry| target(&entry.fixup))
}

/// Reads bytes and returns how many could be read: [`Host::read_text`](probe_core::host::Host::read_text).
pub fn read(from: usize, out: &mut [u8]) -> usize {
    // SAFETY: `out` may be written; `from` may be anything.
    out.len() - unsafe { machine::copy(out.as_mut_ptr().expose_provenance(), from, out.len()) }
}

/// Memory that may not be there: [`Host::Memory`](probe_core::host::Host::Memory).
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultFree;

// SAFETY: every access has an entry in the exception table.
unsafe impl Memory for FaultFree {
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
        // SAFETY: `bytes` may be read, and a fault at `addr` goes on; what is stored there a simulated
        // instruction or a handler stores in the program's place.
        match unsafe { machine::copy(addr, bytes.as_ptr().expose_provenance(), bytes.len()) } {
            0 => Ok(()),
            _ => Err(MemFault { addr, access: Access::Write }),
        }
    }

    #[inline]
    fn read_usize(&self, addr: usize) -> Result<usize, MemFault> {
        machine::load(addr).ok_or(MemFault { addr, access: Access::Read })
    }

    #[inline]
    fn write_usize(&self, addr: usize, word: usize) -> Result<(), MemFault> {
        // SAFETY: as in `write`.
        match unsafe { machine::store(addr, word) } {
            true => Ok(()),
            false => Err(MemFault { addr, access: Access::Write }),
        }
    }
}

/// An entry of the table: the label of the instruction, and the one to go on at.
macro_rules! entry {
    ($instruction:literal, $fixup:literal) => {
        concat!(
            ".pushsection probe_extable, \"aR\"\n.balign 4\n.long ",
            $instruction,
            " - .\n.long ",
            $fixup,
            " - .\n.popsection"
        )
    };
}
use entry;

/// Defines `load` and `store` from instructions that access `{word}` at the address in `{word}` or `{to}`,
/// one that sets `{failed}` to 1, and the name of the jump.
macro_rules! words_that_may_fault {
    ($reg:ident, $load:literal, $store:literal, $set_failed:literal, $jump:literal) => {
        /// Loads the word at `from`; `None` if that faulted. On the hit path: inline.
        #[inline(always)]
        pub(super) fn load(from: usize) -> Option<usize> {
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
                    super::entry!("2b", "4b"),
                    word = inout($reg) from => word,
                    failed = inout($reg) 0_usize => failed,
                    options(readonly, nostack, preserves_flags),
                );
            }
            (failed == 0).then_some(word)
        }

        /// Stores `word` at `to`; `false` if that faulted. On the hit path: inline.
        ///
        /// # Safety
        /// The word at `to`, if there is one, may be overwritten.
        #[inline(always)]
        pub(super) unsafe fn store(to: usize, word: usize) -> bool {
            // SAFETY: the caller lets it be written; a fault goes on at the label.
            unsafe {
                core::arch::asm!(
                    concat!("2: ", $store),
                    super::entry!("2b", "{failed}"),
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

/// Defines `copy` for machines without an instruction for it, from instructions in a row: while at least a
/// word is left, 7 loads and 8 stores it; at 9, while a byte is left, 4 loads and 5 stores it; then comes 6.
/// They may use `{item}`.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
macro_rules! copy_that_may_fault {
    ($reg:ident, $($line:literal),+ $(,)?) => {
        /// Copies `len` bytes from the lowest on; returns how many were left when a byte faulted. A word that
        /// faults is done again byte by byte.
        ///
        /// # Safety
        /// The bytes at `to`, if there are any, may be overwritten.
        #[inline(never)]
        pub(super) unsafe fn copy(to: usize, from: usize, len: usize) -> usize {
            let left;
            // SAFETY: the caller lets them be written; a fault goes on in here.
            unsafe {
                core::arch::asm!(
                    $($line,)+
                    super::entry!("4b", "6b"),
                    super::entry!("5b", "6b"),
                    super::entry!("7b", "9b"),
                    super::entry!("8b", "9b"),
                    to = inout($reg) to => _,
                    from = inout($reg) from => _,
                    left = inout($reg) len => left,
                    item = out($reg) _,
                    word = const size_of::<usize>(),
                    options(nostack),
                );
            }
            left
        }
    };
}

#[cfg_attr(target_arch = "x86_64", path = "extable/x86_64.rs")]
#[cfg_attr(target_arch = "x86", path = "extable/i386.rs")]
#[cfg_attr(target_arch = "aarch64", path = "extable/aarch64.rs")]
#[cfg_attr(target_arch = "arm", path = "extable/arm.rs")]
#[cfg_attr(target_arch = "powerpc64", path = "extable/ppc64.rs")]
#[cfg_attr(target_arch = "powerpc", path = "extable/ppc32.rs")]
#[cfg_attr(target_arch = "riscv64", path = "extable/riscv64.rs")]
mod machine;
