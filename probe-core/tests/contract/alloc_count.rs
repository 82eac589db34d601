//! An allocator that counts, that poisons what is freed, and that aborts the process where allocating is
//! forbidden.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated less those it has freed, with what the allocator needs for each
    /// block.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The allocation that fails, counted down; 0: none does.
    static FAILING: Cell<usize> = const { Cell::new(0) };
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
    /// All allocations from the failing one on fail.
    static FAILS_FOR_GOOD: Cell<bool> = const { Cell::new(false) };
    static IS_FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allowed = count(taken(layout));
        if !allowed {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-taken(layout));
        // Whoever still reads it finds no pointer that leads anywhere.
        // SAFETY: the caller gives the block up, which is as long as it says.
        unsafe { memory.write_bytes(0xd5, layout.size()) };
        // SAFETY: the caller's.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What an allocator sets aside for a block, as glibc's does: a word before it, in steps of two words, and at
/// least four.
fn taken(layout: Layout) -> isize {
    const WORD: usize = size_of::<usize>();
    (layout.size() + WORD).next_multiple_of(2 * WORD).max(4 * WORD) as isize
}

fn count(bytes: isize) -> bool {
    if IS_FORBIDDEN.try_with(Cell::get).unwrap_or(false) {
        std::process::abort();
    }
    if bytes > 0 {
        let failing = FAILING.try_with(Cell::get).unwrap_or(0);
        if failing == 1 {
            if !FAILS_FOR_GOOD.get() {
                FAILING.set(0);
            }
            HAS_FAILED.set(true);
            return false;
        }
        FAILING.set(failing.saturating_sub(1));
    }
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
    true
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that this thread holds.
pub fn live() -> isize {
    LIVE.get()
}

/// Lets this thread's allocation number `number`, from 1, fail.
pub fn fail_allocation(number: usize) {
    FAILS_FOR_GOOD.set(false);
    FAILING.set(number);
}

/// As [`fail_allocation`], and all after it.
pub fn fail_allocations_from(number: usize) {
    FAILS_FOR_GOOD.set(true);
    FAILING.set(number);
}

/// Lets no allocation fail any more; whether one has.
pub fn stop_failing() -> bool {
    FAILING.set(0);
    HAS_FAILED.replace(false)
}

/// Runs `work`; any allocation or deallocation in it aborts the process.
pub fn forbid<T>(work: impl FnOnce() -> T) -> T {
    IS_FORBIDDEN.set(true);
    let result = work();
    IS_FORBIDDEN.set(false);
    result
}
