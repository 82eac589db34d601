//! The signal masks to restore when a signal that had to wait has come.

use crate::arch::UContext;
use crate::sys::{self, SignalSet};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// What a thread's signals wait for.
pub(crate) struct Deferral {
    /// Whether a signal waits for the end of a hit by a jump; the mask to restore then is kept.
    is_deferring: AtomicBool,
    kept_mask: Mask,
    /// The signal that comes once more on another stack although it is blocked, or 0.
    waits_for: AtomicI32,
    wait_mask: Mask,
}

/// A mask that its thread alone reads and writes, in two halves: 32-bit PowerPC has no atomics of 64 bits.
struct Mask([AtomicU32; 2]);

impl Mask {
    fn store(&self, mask: SignalSet) {
        let halves = [mask.bits() as u32, (mask.bits() >> 32) as u32];
        self.0.iter().zip(halves).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
    }

    fn load(&self) -> SignalSet {
        let [low, high] = &self.0;
        let [low, high] = [low, high].map(|word| u64::from(word.load(Ordering::Relaxed)));
        SignalSet::from_bits(low | high << 32)
    }
}

impl Deferral {
    /// Keeps the mask until the hit is over.
    pub(crate) fn keep_mask(&self, mask: SignalSet) {
        self.kept_mask.store(mask);
        self.is_deferring.store(true, Ordering::Relaxed);
    }

    /// Takes the mask that [`Deferral::keep_mask`] has kept; the caller restores it.
    #[inline]
    pub(crate) fn take_kept_mask(&self) -> Option<SignalSet> {
        if !self.is_deferring.load(Ordering::Relaxed) {
            return None;
        }
        self.is_deferring.store(false, Ordering::Relaxed);
        Some(self.kept_mask.load())
    }

    /// Ends the hit: delivers the signals that have waited. In a trap, `context` is the interrupted context.
    #[inline]
    pub(super) fn end(&self, context: Option<UContext>) {
        if let Some(mask) = self.take_kept_mask() {
            resume(mask, context);
        }
    }

    /// Whether [`Deferral::keep_wait`] keeps one.
    pub(crate) fn has_wait(&self) -> bool {
        self.waits_for.load(Ordering::Relaxed) != 0
    }

    /// Keeps the mask under which a wait has let `signal` through, until the signal comes again.
    pub(crate) fn keep_wait(&self, signal: c_int, mask: SignalSet) {
        self.wait_mask.store(mask);
        self.waits_for.store(signal, Ordering::Relaxed);
    }

    /// What [`Deferral::keep_wait`] has kept for `signal`.
    pub(crate) fn take_wait(&self, signal: c_int) -> Option<SignalSet> {
        let is_kept = self.waits_for.load(Ordering::Relaxed) == signal;
        is_kept.then(|| {
            self.waits_for.store(0, Ordering::Relaxed);
            self.wait_mask.load()
        })
    }

    /// The thread is dead.
    pub(super) fn reset(&self) {
        self.is_deferring.store(false, Ordering::Relaxed);
        self.waits_for.store(0, Ordering::Relaxed);
    }
}

#[cold]
fn resume(mask: SignalSet, context: Option<UContext>) {
    match context {
        Some(context) => context.set_mask(mask),
        None => drop(sys::sigprocmask(libc::SIG_SETMASK, Some(mask))),
    }
}
