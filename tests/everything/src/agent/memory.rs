//! Memory from the kernel: the program's heap is the same with and without probes, so that its allocator
//! takes the same paths. Nothing is given back but what was taken last.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::Mutex;

/// The address space that is reserved; memory is used as it is needed.
const RESERVED: usize = if cfg!(target_pointer_width = "64") { 16 << 30 } else { 1 << 30 };
/// Where it is asked for: far from the program's objects, whose slots have to be near them.
const HINT: usize = if cfg!(target_pointer_width = "64") { 0x3000_0000_0000_u64 as usize } else { 0 };

/// The next free address and the end, 0 before the first allocation.
struct Arena(Mutex<(usize, usize)>);

#[global_allocator]
static ARENA: Arena = Arena(Mutex::new((0, 0)));

/// Address space that is all zero.
fn reserve() -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let hint = ptr::without_provenance_mut(HINT);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping; where the address is taken, the kernel chooses another one.
    let mapped = unsafe { libc::mmap(hint, RESERVED, prot, flags, -1, 0) };
    (mapped != libc::MAP_FAILED).then_some(mapped as usize)
}

// SAFETY: every block is a range of the reservation that no other living block has.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Ok(mut arena) = self.0.lock() else { return ptr::null_mut() };
        if arena.0 == 0 {
            let Some(start) = reserve() else { return ptr::null_mut() };
            *arena = (start, start + RESERVED);
        }
        let start = arena.0.next_multiple_of(layout.align());
        if arena.1 - start < layout.size() {
            return ptr::null_mut();
        }
        arena.0 = start + layout.size();
        start as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Ok(mut arena) = self.0.lock()
            && arena.0 == block as usize + layout.size()
        {
            arena.0 = block as usize;
        }
    }
}
