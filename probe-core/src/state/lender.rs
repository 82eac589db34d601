//! Things that the core lends to handlers, whatever the host is.

use crate::arch::{MemFault, Memory};
use crate::state::counter::Shares;

/// The lender of things to a handler, whatever the host is.
pub(crate) trait Lender: Sync {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault>;
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault>;
    /// A handler has enabled or disabled a probe: breakpoints come and go later (REG_18).
    fn note_change(&self);
    /// The shares that probes' hits are counted with, beside their own words.
    fn shares(&self) -> &Shares;
}

/// The interrupted context's memory, as a handler sees it: no access ever faults.
#[derive(Clone, Copy)]
pub struct TargetMemory<'a>(pub(crate) &'a dyn Lender);

// SAFETY: forwards to the host's memory, which keeps the promise.
unsafe impl Memory for TargetMemory<'_> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        self.0.read(addr, out)
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        self.0.write(addr, bytes)
    }
}
