//! Memory for native runs: code, data, a stack, slots, with unmapped pages between them.

use probe_core::CodeAddr;
use probe_core::arch::{Access, MemFault, Memory, Text};

pub(crate) const PAGE: usize = 4096;

/// Regions of two pages each, an inaccessible page after each.
pub(crate) struct Arena {
    base: usize,
}

const REGIONS: usize = 4;
const REGION_LEN: usize = 2 * PAGE;
const STRIDE: usize = 3 * PAGE;

impl Arena {
    /// Maps the arena below 2 GiB, so that 32-bit addresses and displacements reach it.
    pub(crate) fn new() -> Self {
        let len = REGIONS * STRIDE + PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let base = (0x2000_0000..0x6000_0000usize)
            .step_by(1 << 20)
            .find(|hint| {
                // SAFETY: a new private mapping where nothing is mapped.
                let at = unsafe { libc::mmap(*hint as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
                if at as usize != *hint && at != libc::MAP_FAILED {
                    // SAFETY: our own new mapping, in the wrong place.
                    unsafe { libc::munmap(at, len) };
                }
                at as usize == *hint
            })
            .expect("room below 2 GiB");
        let arena = Self { base };
        for region in 0..REGIONS {
            // Code and slots, which the tests write all the time, before data and stack.
            let execute = if region < 2 { libc::PROT_EXEC } else { 0 };
            let protection = libc::PROT_READ | libc::PROT_WRITE | execute;
            // SAFETY: within our own mapping.
            let done = unsafe { libc::mprotect(arena.region(region) as *mut _, REGION_LEN, protection) };
            assert_eq!(done, 0);
        }
        arena
    }

    fn region(&self, number: usize) -> usize {
        self.base + PAGE + number * STRIDE
    }

    /// Code: full of breakpoints but for the instruction under test.
    pub(crate) fn code(&self) -> usize {
        self.region(0)
    }

    /// Slots.
    pub(crate) fn slots(&self) -> usize {
        self.region(1)
    }

    /// Data and jump tables.
    pub(crate) fn data(&self) -> usize {
        self.region(2)
    }

    /// The stack's lowest byte.
    pub(crate) fn stack(&self) -> usize {
        self.region(3)
    }

    pub(crate) const LEN: usize = REGION_LEN;

    /// The bytes of a region.
    #[expect(clippy::mut_from_ref, reason = "raw memory that the code under test writes as well")]
    pub(crate) fn bytes(&self, region: usize) -> &mut [u8] {
        // SAFETY: mapped for the arena's life; callers do not keep the slice across a run.
        unsafe { std::slice::from_raw_parts_mut(region as *mut u8, REGION_LEN) }
    }

    fn holds(&self, at: usize, len: usize) -> bool {
        (0..REGIONS).any(|number| {
            let region = self.region(number);
            at >= region && at.checked_add(len).is_some_and(|end| end <= region + REGION_LEN)
        })
    }
}

// SAFETY: only accesses within mapped regions are made.
unsafe impl Memory for Arena {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        if !self.holds(addr, out.len()) {
            return Err(MemFault { addr, access: Access::Read });
        }
        // SAFETY: mapped, checked above.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        if !self.holds(addr, bytes.len()) {
            return Err(MemFault { addr, access: Access::Write });
        }
        // SAFETY: mapped, checked above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        Ok(())
    }
}

impl Text for Arena {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        (0..=out.len())
            .rev()
            .find(|len| Memory::read(self, at.as_usize(), &mut out[..*len]).is_ok())
            .unwrap_or(0)
    }
}
