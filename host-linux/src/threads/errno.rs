//! The program's errno, kept while handlers run.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// A thread's errno.
pub(super) struct Errno {
    /// Where it is, or null before that is known.
    at: AtomicPtr<c_int>,
    /// How often [`Errno::keep`] was called without [`Errno::restore`].
    depth: AtomicU32,
    /// What it was at the first.
    kept: AtomicI32,
}

impl Errno {
    #[inline]
    fn word(&self) -> Option<&AtomicI32> {
        let at = self.at.load(Ordering::Relaxed);
        // SAFETY: null, or the errno of the thread that owns the block, which is the one that runs this.
        (!at.is_null()).then(|| unsafe { AtomicI32::from_ptr(at) })
    }

    pub(super) fn is_known(&self) -> bool {
        self.word().is_some()
    }

    /// Whether a handler runs, for which it is kept.
    pub(super) fn is_kept(&self) -> bool {
        self.depth.load(Ordering::Relaxed) != 0
    }

    /// Learns where the calling thread's is.
    pub(super) fn learn(&self, at: *mut c_int) {
        self.at.store(at, Ordering::Relaxed);
    }

    /// Keeps it until [`Errno::restore`]; `false` where it is not known.
    #[inline]
    pub(super) fn keep(&self) -> bool {
        let Some(errno) = self.word() else { return false };
        let depth = self.depth.load(Ordering::Relaxed);
        if depth == 0 {
            self.kept.store(errno.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.depth.store(depth + 1, Ordering::Relaxed);
        true
    }

    /// Ends what [`Errno::keep`] began; whether that was the outermost, so that the program has its errno again.
    #[inline]
    pub(super) fn restore(&self) -> bool {
        let Some(errno) = self.word() else { return false };
        let depth = self.depth.load(Ordering::Relaxed).saturating_sub(1);
        self.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            errno.store(self.kept.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        depth == 0
    }

    /// Gives the program its own while an instruction of its own runs.
    #[inline]
    pub(super) fn lend(&self) {
        if let Some(errno) = self.word() {
            errno.store(self.kept.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Ends what [`Errno::lend`] began: what the instruction has made of it is kept.
    #[inline]
    pub(super) fn take_back(&self) {
        if let Some(errno) = self.word() {
            self.kept.store(errno.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The thread is dead.
    pub(super) fn reset(&self) {
        self.at.store(core::ptr::null_mut(), Ordering::Relaxed);
        self.depth.store(0, Ordering::Relaxed);
    }
}
