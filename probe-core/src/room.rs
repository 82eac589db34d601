//! Memory for values that are shared by address, and freed by hand after a grace period.

use crate::error::NoMemory;
use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::ptr::NonNull;

/// Memory for one T, allocated before the T can be made.
pub(crate) struct Room<T>(NonNull<T>);

impl<T> Room<T> {
    /// Gets the memory.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn new() -> Result<Self, NoMemory> {
        const { assert!(size_of::<T>() != 0) };
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc(Layout::new::<T>()) };
        NonNull::new(memory.cast::<T>()).map(Self).ok_or(NoMemory)
    }

    /// Puts `value` there, to be freed with [`free`].
    pub(crate) fn fill(self, value: T) -> NonNull<T> {
        let memory = self.0;
        core::mem::forget(self);
        // SAFETY: allocated for it, and nobody else has it.
        unsafe { memory.write(value) };
        memory
    }
}

impl<T> Drop for Room<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and never filled.
        unsafe { dealloc(self.0.as_ptr().cast(), Layout::new::<T>()) };
    }
}

/// Puts `value` into memory of its own, to be freed with [`free`].
///
/// # Errors
/// No memory.
pub(crate) fn leak<T>(value: T) -> Result<NonNull<T>, NoMemory> {
    Ok(Room::new()?.fill(value))
}

/// Takes what [`leak`] gave back.
///
/// # Safety
/// Nobody else uses it.
pub(crate) unsafe fn free<T>(value: NonNull<T>) -> Box<T> {
    // SAFETY: allocated with T's layout, as boxes are.
    unsafe { Box::from_raw(value.as_ptr()) }
}
