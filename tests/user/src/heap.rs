//! How much memory a test program has allocated: for tests that nothing leaks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, counting, and poisoning what is freed; a test program's `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

// SAFETY: forwards to the system's allocator, counts, and writes to nothing but what is given up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, SeqCst);
        // Whoever still reads it finds no pointer that leads anywhere.
        // SAFETY: the caller gives the block up, which is as long as it says.
        unsafe { block.write_bytes(0xd5, layout.size()) };
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) };
    }
}

/// Bytes that are allocated now, where [`Counting`] is the allocator.
pub fn live_bytes() -> i64 {
    LIVE_BYTES.load(SeqCst) as i64
}
