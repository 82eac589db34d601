//! Return stubs in memory of their own.

use crate::own::{BACKEND, Backend, handler};
use probe_core::CodeAddr;
use probe_core::arch::{Calls, NativeArch};

/// A chunk of return stubs that lead to the architecture's `handler`.
pub(crate) struct Chunk {
    pub(crate) at: usize,
    pub(crate) stubs: usize,
}

pub(crate) const CHUNK: usize = 4096;

impl Chunk {
    pub(crate) fn new(trampoline: CodeAddr) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), CHUNK, both, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: just mapped.
        let bytes = unsafe { core::slice::from_raw_parts_mut(at.cast::<u8>(), CHUNK - 8) };
        let address = CodeAddr::new(at as usize);
        let stubs = BACKEND.fill_stubs(address, trampoline, handler as *const () as usize, bytes);
        // SAFETY: the mapping is ours.
        let result = unsafe { libc::mprotect(at, CHUNK, libc::PROT_READ | libc::PROT_EXEC) };
        assert_eq!(result, 0);
        // SAFETY: mapped and readable.
        unsafe { Backend::publish(address, CHUNK) };
        Self { at: at as usize, stubs }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no call is under way.
        unsafe { libc::munmap(self.at as *mut libc::c_void, CHUNK) };
    }
}
