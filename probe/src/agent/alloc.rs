//! Memory from the kernel, not from the program's allocator: the agent's own calls must neither show up in a
//! trace of `malloc` nor change the program's heap, and may happen while the program's allocator holds its
//! locks.
//!
//! A bump allocator over reserved address space: what is given back is reused only if it was the last. The
//! agent allocates while it starts and when objects come and go, and in one handler only, before a program is
//! executed ([`super::exec`]).

use crate::wire::region::OUT_OF_THE_WAY;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The address space that is reserved; memory is used as it is needed.
const RESERVED: usize = if cfg!(target_pointer_width = "64") { 4 << 30 } else { 192 << 20 };
/// The hint for the reservation: far from the program's objects, and above the region that the command shares
/// with us.
const HINT: usize = if OUT_OF_THE_WAY == 0 { 0 } else { OUT_OF_THE_WAY + OUT_OF_THE_WAY / 16 };
/// Memory is made accessible in pieces of this many bytes.
const PIECE: usize = 1 << 20;

/// Blocks are as long as a multiple of this, so that none of usual alignment leaves a gap before it: what
/// stands before a gap would not be the last block again.
const UNIT: usize = 16;

/// Where a block ends that begins at `start`.
fn end_of(start: usize, len: usize) -> usize {
    (start + len).next_multiple_of(UNIT)
}

struct Arena {
    /// The first address, 0 before the first allocation.
    base: AtomicUsize,
    /// Bytes given out.
    next: AtomicUsize,
    /// Bytes made accessible.
    open: AtomicUsize,
}

#[global_allocator]
static ARENA: Arena =
    Arena { base: AtomicUsize::new(0), next: AtomicUsize::new(0), open: AtomicUsize::new(0) };

/// Whether half of the memory has been given out, so that what can be done without should be.
pub(super) fn is_nearly_full() -> bool {
    ARENA.next.load(Ordering::Relaxed) > RESERVED / 2
}

impl Arena {
    /// The first address; reserves the address space at the first call.
    fn base(&self) -> Option<usize> {
        let base = self.base.load(Ordering::Acquire);
        if base != 0 {
            return Some(base);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let hint = ptr::without_provenance_mut(HINT);
        // SAFETY: a new mapping; where the address is taken, the kernel chooses another one.
        let mapped = unsafe { libc::mmap(hint, RESERVED, libc::PROT_NONE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        match self.base.compare_exchange(0, mapped as usize, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(mapped as usize),
            Err(other) => {
                // SAFETY: just mapped, and another thread was faster.
                unsafe { libc::munmap(mapped, RESERVED) };
                Some(other)
            }
        }
    }

    /// Makes the first `len` bytes accessible.
    fn open(&self, base: usize, len: usize) -> bool {
        let open = self.open.load(Ordering::Acquire);
        if len <= open {
            return true;
        }
        let wanted = len.next_multiple_of(PIECE).min(RESERVED);
        let (from, prot) = (base + open, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: within our own reservation; opening twice does nothing.
        if unsafe { libc::mprotect(from as *mut libc::c_void, wanted - open, prot) } != 0 {
            return false;
        }
        self.open.fetch_max(wanted, Ordering::AcqRel);
        true
    }
}

// SAFETY: every block is a range of the arena that no other living block has: `next` only moves over free
// memory.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(base) = self.base() else { return ptr::null_mut() };
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let Some(start) = (base + next).checked_next_multiple_of(layout.align()) else {
                return ptr::null_mut();
            };
            let end = end_of(start - base, layout.size());
            if end > RESERVED || !self.open(base, end) {
                return ptr::null_mut();
            }
            match self.next.compare_exchange_weak(next, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return start as *mut u8,
                Err(now) => next = now,
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let start = block as usize - self.base.load(Ordering::Relaxed);
        let end = end_of(start, layout.size());
        // The last block can be given back; the others stay.
        let _ = self.next.compare_exchange(end, start, Ordering::AcqRel, Ordering::Relaxed);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_len: usize) -> *mut u8 {
        let base = self.base.load(Ordering::Relaxed);
        let start = block as usize - base;
        let (end, new_end) = (end_of(start, layout.size()), end_of(start, new_len));
        if new_end <= end {
            let _ = self.next.compare_exchange(end, new_end, Ordering::AcqRel, Ordering::Relaxed);
            return block;
        }
        // The last block grows where it is.
        if new_end <= RESERVED
            && self.open(base, new_end)
            && self.next.compare_exchange(end, new_end, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return block;
        }
        let Ok(new_layout) = Layout::from_size_align(new_len, layout.align()) else { return ptr::null_mut() };
        // SAFETY: the caller's promise: not zero-sized.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: two different living blocks, both at least as long as the old one.
            unsafe { ptr::copy_nonoverlapping(block, new, layout.size()) };
        }
        new
    }
}
