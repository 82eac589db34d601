//! Memory that may not be there, as [`gimli`] reads it.

use alloc::borrow::Cow;
use gimli::{Error, NativeEndian, Reader, ReaderOffsetId, Result};
use probe_core::arch::Memory;

/// Some bytes of the process.
pub(super) struct Bytes<'m, M> {
    memory: &'m M,
    at: usize,
    len: usize,
}

impl<'m, M> Bytes<'m, M> {
    /// The bytes from an address on.
    pub(super) fn new(memory: &'m M, at: usize, len: usize) -> Self {
        Self { memory, at, len }
    }

    fn end(&self) -> Error {
        Error::UnexpectedEof(ReaderOffsetId(self.at as u64))
    }
}

impl<M> Clone for Bytes<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Bytes<'_, M> {}

impl<M> core::fmt::Debug for Bytes<'_, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes at {:#x}", self.len, self.at)
    }
}

impl<M: Memory> Reader for Bytes<'_, M> {
    type Endian = NativeEndian;
    type Offset = usize;

    fn endian(&self) -> NativeEndian {
        NativeEndian::default()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn empty(&mut self) {
        self.len = 0;
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.len {
            return Err(self.end());
        }
        self.len = len;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.at.wrapping_sub(base.at)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        usize::try_from(id.0).ok()?.checked_sub(self.at).filter(|offset| *offset <= self.len)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let mut rest = *self;
        let mut offset = 0;
        while rest.read_u8()? != byte {
            offset += 1;
        }
        Ok(offset)
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.len = self.len.checked_sub(len).ok_or_else(|| self.end())?;
        self.at = self.at.wrapping_add(len);
        Ok(())
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        let mut head = *self;
        head.truncate(len)?;
        self.skip(len)?;
        Ok(head)
    }

    /// Never: nothing is allocated here, and no parser of frames asks.
    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        Err(self.end())
    }

    /// Never, as above.
    fn to_string(&self) -> Result<Cow<'_, str>> {
        Err(self.end())
    }

    /// Never, as above.
    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        Err(self.end())
    }

    fn read_slice(&mut self, out: &mut [u8]) -> Result<()> {
        if out.len() > self.len || self.memory.read(self.at, out).is_err() {
            return Err(self.end());
        }
        self.skip(out.len())
    }
}
