//! Access to memory that may not be there, by asking first: the page tables of a kernel whose mappings do not
//! go away while a hit looks at them.
//!
//! For kernels that map all their memory once. Where another CPU may unmap a page between question and
//! access, only an exception table is right (`extable`).

use core::ops::Range;
use core::ptr;
use probe_core::arch::{Access, MemFault, Memory};

/// What a kernel says of its page tables.
///
/// # Safety
/// A page that may be accessed stays so until the hit that has asked is over.
pub unsafe trait Walk: Sync {
    /// The size of the smallest page in bytes.
    const PAGE: usize = 4096;

    /// Whether the kernel may access the page that holds `addr`. In a hit: no lock.
    fn allows(&self, addr: usize, access: Access) -> bool;
}

/// Memory as the page tables have it: [`Host::Memory`](probe_core::host::Host::Memory).
pub struct Walked<W>(pub W);

/// Where each page of a range begins in it.
fn pages(range: &Range<usize>, page: usize) -> impl Iterator<Item = usize> {
    let first = range.start & !(page - 1);
    let start = range.start;
    (first..range.end).step_by(page).map(move |at| at.max(start))
}

impl<W: Walk> Walked<W> {
    /// How many of `len` bytes from `addr` on may be accessed.
    fn allowed(&self, addr: usize, len: usize, access: Access) -> usize {
        let Some(end) = addr.checked_add(len) else { return 0 };
        let range = addr..end;
        let refused = pages(&range, W::PAGE).find(|&page| !self.0.allows(page, access));
        refused.map_or(len, |page| page - addr)
    }

    /// Reads bytes and returns how many could be read: [`Host::read_text`].
    ///
    /// [`Host::read_text`]: probe_core::host::Host::read_text
    pub fn read_some(&self, addr: usize, out: &mut [u8]) -> usize {
        let len = self.allowed(addr, out.len(), Access::Read);
        for (index, byte) in out.iter_mut().take(len).enumerate() {
            let from = ptr::with_exposed_provenance::<u8>(addr.wrapping_add(index));
            // SAFETY: the page is there, as just asked, and stays (`Walk`).
            *byte = unsafe { from.read_volatile() };
        }
        len
    }
}

// SAFETY: only what the page tables allow is accessed.
unsafe impl<W: Walk> Memory for Walked<W> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        if self.read_some(addr, out) == out.len() {
            Ok(())
        } else {
            Err(MemFault { addr, access: Access::Read })
        }
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        if self.allowed(addr, bytes.len(), Access::Write) != bytes.len() {
            return Err(MemFault { addr, access: Access::Write });
        }
        for (index, &byte) in bytes.iter().enumerate() {
            let to = ptr::with_exposed_provenance_mut::<u8>(addr.wrapping_add(index));
            // SAFETY: the page is writable, as just asked, and stays; a simulated instruction or a handler
            // stores in the program's place.
            unsafe { to.write_volatile(byte) };
        }
        Ok(())
    }
}
