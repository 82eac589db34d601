//! The program's errno, kept while handlers run.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// A thread's errno.
pub(super) struct Errno {
    /// Where it is, or null before that is known.
    at: AtomicPtr<c_int>,
    /// The calls of [`Errno::keep`] that no [`Errno::restore`] has ended yet, and [`LENT`].
    depth: AtomicU32,
    /// What it was at the first.
    kept: AtomicI32,
}

/// In [`Errno::depth`]: the thread's block is lent. Here, where each hit begins and looks already.
const LENT: u32 = 1 << 31;

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
        self.depth.load(Ordering::Relaxed) & !LENT != 0
    }

    /// Whether the block is lent.
    #[inline]
    pub(super) fn is_lent(&self) -> bool {
        self.depth.load(Ordering::Relaxed) & LENT != 0
    }

    /// Lends the block: [`Errno::keep`] fails until [`Errno::end_lending`].
    pub(super) fn begin_lending(&self) {
        self.depth.store(self.depth.load(Ordering::Relaxed) | LENT, Ordering::Relaxed);
    }

    /// The block is its thread's alone.
    pub(super) fn end_lending(&self) {
        self.depth.store(self.depth.load(Ordering::Relaxed) & !LENT, Ordering::Relaxed);
    }

    /// Forgets what was kept.
    pub(super) fn forget(&self) {
        self.depth.store(0, Ordering::Relaxed);
    }

    /// Learns where the calling thread's is.
    pub(super) fn learn(&self, at: *mut c_int) {
        self.at.store(at, Ordering::Relaxed);
    }

    /// Keeps the errno until [`Errno::restore`]; `false` if its address is not known, or the block is lent.
    #[inline]
    pub(super) fn keep(&self) -> bool {
        !self.is_lent() && self.keep_lent()
    }

    /// As [`Errno::keep`], also if the block is lent.
    #[inline]
    pub(super) fn keep_lent(&self) -> bool {
        let Some(errno) = self.word() else { return false };
        let depth = self.depth.load(Ordering::Relaxed);
        if depth & !LENT == 0 {
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
        let depth = self.depth.load(Ordering::Relaxed);
        // The outermost of a block that is not lent.
        if depth > 1 {
            return self.restore_inner(errno, depth);
        }
        self.depth.store(0, Ordering::Relaxed);
        errno.store(self.kept.load(Ordering::Relaxed), Ordering::Relaxed);
        true
    }

    fn restore_inner(&self, errno: &AtomicI32, depth: u32) -> bool {
        let left = (depth & !LENT).saturating_sub(1);
        self.depth.store(depth & LENT | left, Ordering::Relaxed);
        if left == 0 {
            errno.store(self.kept.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        left == 0
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
