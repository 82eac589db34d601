//! The program's errno, kept while handlers run.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// A thread's errno.
pub(super) struct Errno {
    /// Where it is, or null before that is known.
    at: AtomicPtr<c_int>,
    /// The calls of [`Errno::keep`] that no [`Errno::restore`] has ended yet.
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

    /// Keeps the errno until [`Errno::restore`]; `false` if its address is not known.
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

    /// Ends what [`Errno::keep`] began; returns whether that was the outermost call, so that the program has
    /// its errno again.
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

    /// Gives the program its errno while one of its own instructions runs.
    #[inline]
    pub(super) fn lend(&self) {
        if let Some(errno) = self.word() {
            errno.store(self.kept.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Ends what [`Errno::lend`] began, and keeps the errno that the instruction has left.
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
