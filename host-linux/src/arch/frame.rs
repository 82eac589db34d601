//! The kernel's `ucontext_t` as words.

use probe_arch_native::Native;

/// The saved registers of the native backend.
pub(crate) type Regs = <Native as probe_core::arch::Arch>::Regs;

/// The `ucontext_t` of a running signal handler.
#[derive(Clone, Copy)]
pub(super) struct Frame(*mut u8);

impl Frame {
    /// Wraps the third argument of a signal handler.
    ///
    /// # Safety
    /// `raw` is that argument, and the handler is still running while the value is used.
    pub(super) unsafe fn new(raw: *mut core::ffi::c_void) -> Self {
        Self(raw.cast())
    }

    /// The address of what lies at `offset` bytes of the structure.
    pub(super) fn at<T>(self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset).cast()
    }

    /// The machine word at `offset` bytes of the structure.
    pub(super) fn word(self, offset: usize) -> usize {
        // SAFETY: the callers, the files of this folder, use offsets of word-sized members of the kernel's
        // structure.
        unsafe { self.at::<usize>(offset).read() }
    }

    /// Stores the machine word at `offset` bytes of the structure.
    pub(super) fn set_word(self, offset: usize, word: usize) {
        // SAFETY: as in `word`.
        unsafe { self.at::<usize>(offset).write(word) };
    }
}
