//! The heap: a free list for every power of two.

use crate::lock::{Guard, SpinLock};
use crate::memory;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MIN_SHIFT: usize = 4;
const CLASSES: usize = 22;

struct Heap {
    /// The untouched rest of the heap.
    rest: usize,
    end: usize,
    free: [Option<NonNull<Block>>; CLASSES],
    used_bytes: usize,
}

/// A free block: leads to the next one.
struct Block {
    next: Option<NonNull<Block>>,
}

// SAFETY: the blocks belong to the heap.
unsafe impl Send for Heap {}

struct KernelAllocator(SpinLock<Heap>);

#[global_allocator]
static HEAP: KernelAllocator =
    KernelAllocator(SpinLock::new(Heap { rest: 0, end: 0, free: [None; CLASSES], used_bytes: 0 }));

/// Gives the heap its memory.
pub fn init() {
    let (start, end) = memory::heap_range();
    let mut heap = HEAP.0.lock();
    heap.rest = start;
    heap.end = end;
}

/// Whether what is freed is overwritten: not where instructions are counted.
static IS_POISONING: AtomicBool = AtomicBool::new(false);

/// Overwrites what is freed from here on, so that whoever still uses it is found out.
pub fn poison() {
    IS_POISONING.store(true, Relaxed);
}

/// How many bytes are allocated, for tests that nothing leaks.
pub fn used_bytes() -> usize {
    HEAP.0.lock().used_bytes
}

/// The size class that holds `layout`; its blocks have twice the size of the one before and are aligned to
/// their size.
fn class(layout: Layout) -> usize {
    let len = layout.size().max(layout.align()).max(1 << MIN_SHIFT);
    len.next_power_of_two().trailing_zeros() as usize - MIN_SHIFT
}

fn carve(heap: &mut Guard<'_, Heap>, len: usize) -> *mut u8 {
    let start = heap.rest.next_multiple_of(len);
    if start + len > heap.end {
        return ptr::null_mut();
    }
    heap.rest = start + len;
    ptr::with_exposed_provenance_mut(start)
}

// SAFETY: a block is handed out once until it is freed, and is as long and as aligned as its class says.
unsafe impl GlobalAlloc for KernelAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = class(layout);
        if class >= CLASSES {
            return ptr::null_mut();
        }
        let mut heap = self.0.lock();
        let block = match heap.free[class] {
            Some(block) => {
                // SAFETY: blocks on the list are free and hold a `Block`.
                heap.free[class] = unsafe { block.read() }.next;
                block.as_ptr().cast()
            }
            None => carve(&mut heap, 1 << (class + MIN_SHIFT)),
        };
        if !block.is_null() {
            heap.used_bytes += 1 << (class + MIN_SHIFT);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let class = class(layout);
        if IS_POISONING.load(Relaxed) {
            // Whoever still reads it finds no pointer that leads anywhere.
            // SAFETY: the caller gives the block back, which is as long as its class says.
            unsafe { block.write_bytes(0xd5, 1 << (class + MIN_SHIFT)) };
        }
        let mut heap = self.0.lock();
        heap.used_bytes -= 1 << (class + MIN_SHIFT);
        let Some(block) = NonNull::new(block.cast::<Block>()) else { return };
        let next = heap.free[class];
        // SAFETY: the caller gives the block back, and every class is large enough for a `Block`.
        unsafe { block.write(Block { next }) };
        heap.free[class] = Some(block);
    }
}
