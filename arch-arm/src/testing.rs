//! Memory and text for the tests of this crate.

use probe_core::CodeAddr;
use probe_core::arch::{Access, MemFault, Memory, Text};
use std::cell::RefCell;
use std::vec::Vec;

/// Memory that nothing is mapped in.
pub(crate) struct NoMemory;

// SAFETY: it has no effect and fails always.
unsafe impl Memory for NoMemory {
    fn read(&self, addr: usize, _out: &mut [u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Read })
    }

    fn write(&self, addr: usize, _bytes: &[u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Write })
    }
}

/// Some bytes at an address, and nothing around them.
pub(crate) struct Bytes {
    at: usize,
    bytes: RefCell<Vec<u8>>,
}

impl Bytes {
    pub(crate) fn new(at: usize, bytes: &[u8]) -> Self {
        Self { at, bytes: RefCell::new(bytes.into()) }
    }
}

// SAFETY: an access that is not wholly inside fails without effect.
unsafe impl Memory for Bytes {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let bytes = self.bytes.borrow();
        let from = addr.checked_sub(self.at).and_then(|start| bytes.get(start..start + out.len()));
        out.copy_from_slice(from.ok_or(MemFault { addr, access: Access::Read })?);
        Ok(())
    }

    fn write(&self, addr: usize, new: &[u8]) -> Result<(), MemFault> {
        let mut bytes = self.bytes.borrow_mut();
        let to = addr.checked_sub(self.at).and_then(|start| bytes.get_mut(start..start + new.len()));
        to.ok_or(MemFault { addr, access: Access::Write })?.copy_from_slice(new);
        Ok(())
    }
}

impl Text for Bytes {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let bytes = self.bytes.borrow();
        let Some(from) = at.as_usize().checked_sub(self.at).and_then(|start| bytes.get(start..)) else {
            return 0;
        };
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}
