//! The kernel's `ucontext_t` as words.

use probe_arch_native::Native;

/// The saved registers of the native backend.
pub(crate) type Regs = <Native as probe_core::arch::Arch>::Regs;

/// The `ucontext_t` of a running signal handler.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    start: *mut u8,
    len_bytes: usize,
}

impl Frame {
    /// Wraps the third argument of a signal handler.
    ///
    /// # Safety
    /// `raw` is that argument, the kernel's structure is so long at the least, and the handler is still
    /// running while the value is used.
    #[inline]
    pub(super) unsafe fn new(raw: *mut core::ffi::c_void, len_bytes: usize) -> Self {
        Self { start: raw.cast(), len_bytes }
    }

    /// The address of what lies at `offset` bytes of the structure.
    pub(super) fn at<T>(self, offset: usize) -> *mut T {
        self.start.wrapping_add(offset).cast()
    }

    /// The machine word at `offset` bytes of the structure; 0 behind its end.
    #[inline]
    pub(super) fn word(self, offset: usize) -> usize {
        debug_assert!(self.has_word(offset), "no word of the frame");
        // SAFETY: `new` was promised the structure, and a word of it lies there.
        if self.has_word(offset) { unsafe { self.at::<usize>(offset).read() } } else { 0 }
    }

    /// Stores the machine word at `offset` bytes of the structure.
    #[inline]
    pub(super) fn set_word(self, offset: usize, word: usize) {
        debug_assert!(self.has_word(offset), "no word of the frame");
        if self.has_word(offset) {
            // SAFETY: as in `word`; any value is one.
            unsafe { self.at::<usize>(offset).write(word) };
        }
    }

    /// Whether a word of the structure lies at `offset`.
    #[inline]
    fn has_word(self, offset: usize) -> bool {
        offset.is_multiple_of(size_of::<usize>())
            && offset.saturating_add(size_of::<usize>()) <= self.len_bytes
    }
}
