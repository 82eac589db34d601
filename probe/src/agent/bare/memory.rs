//! The heap, for the few places where libc's is meant: blocks of the agent's own allocator that are never
//! given back.

use std::alloc::{Layout, alloc};
use std::ffi::{c_char, c_void};

/// How blocks are aligned; before each is its length.
const ALIGN: usize = 16;

/// A block of `len` bytes, or NULL.
pub(super) fn take(len: usize) -> *mut u8 {
    let Some(layout) = len.checked_add(ALIGN).and_then(|len| Layout::from_size_align(len, ALIGN).ok()) else {
        return std::ptr::null_mut();
    };
    // SAFETY: not of no length.
    let block = unsafe { alloc(layout) };
    if block.is_null() {
        return block;
    }
    // SAFETY: longer than a word, and aligned.
    unsafe { block.cast::<usize>().write(len) };
    // SAFETY: as above.
    unsafe { block.add(ALIGN) }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(len: usize) -> *mut c_void {
    take(len).cast()
}

/// # Safety
/// As `realloc(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, len: usize) -> *mut c_void {
    let new = take(len);
    if block.is_null() || new.is_null() {
        return new.cast();
    }
    // SAFETY: of `take`, by the caller's promise: the length is before it.
    let old_len = unsafe { block.wrapping_byte_sub(ALIGN).cast::<usize>().read() };
    // SAFETY: two blocks, both as long.
    unsafe { std::ptr::copy_nonoverlapping(block.cast::<u8>(), new, old_len.min(len)) };
    new.cast()
}

#[unsafe(no_mangle)]
extern "C" fn free(_block: *mut c_void) {}

/// # Safety
/// As `strlen(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    // A plain loop may be compiled to a call of `strlen`.
    let byte_at = |len| {
        // SAFETY: not past the NUL, by the caller's promise.
        let byte = unsafe { text.add(len) };
        // SAFETY: as above.
        unsafe { byte.read_volatile() }
    };
    (0..).take_while(|&len| byte_at(len) != 0).count()
}
