//! A system call by which a thread waits for signals of a set.

use crate::arch::UContext;
use crate::sys::SignalSet;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// A system call that waits for signals of a set (`rt_sigtimedwait`), as it is made: the kernel is given a
/// set without ours, which come to our handler.
pub(crate) struct Wait {
    /// Those of ours that it waits for; 0: there is none.
    signals: AtomicU64,
    /// The set that the kernel is given, as the kernel reads it.
    set: UnsafeCell<SignalSet>,
    /// The program's set, in memory.
    of_program: AtomicUsize,
    /// The probed instruction.
    place: AtomicUsize,
    /// The stack pointer in the call.
    sp: AtomicUsize,
    /// The frame of the hit before the call, until that hit is over.
    hit: AtomicPtr<core::ffi::c_void>,
}

/// What a wait begins with once more.
pub(crate) struct Begun {
    /// The probed instruction.
    pub(crate) place: usize,
    /// The program's set, in memory.
    pub(crate) of_program: usize,
}

/// No stack pointer.
const BLOCKED: usize = usize::MAX;

impl Wait {
    #[cfg(test)]
    pub(super) const fn new() -> Self {
        Self {
            signals: AtomicU64::new(0),
            set: UnsafeCell::new(SignalSet::EMPTY),
            of_program: AtomicUsize::new(0),
            place: AtomicUsize::new(0),
            sp: AtomicUsize::new(0),
            hit: AtomicPtr::new(null_mut()),
        }
    }

    /// Where the set lies that the kernel is given.
    pub(crate) fn set(&self) -> usize {
        self.set.get() as usize
    }

    /// What [`Wait::begin`] was last called with.
    pub(crate) fn begun(&self) -> Begun {
        let [place, of_program] = [&self.place, &self.of_program].map(|word| word.load(Ordering::Relaxed));
        Begun { place, of_program }
    }

    /// The thread is about to wait for `signals`, all ours, and those of `others`, in the hit of `context`.
    pub(crate) fn begin(&self, signals: SignalSet, others: SignalSet, begun: Begun, context: UContext) {
        // SAFETY: the thread's own, which is not in the system call.
        unsafe { self.set.get().write(others) };
        self.of_program.store(begun.of_program, Ordering::Relaxed);
        self.place.store(begun.place, Ordering::Relaxed);
        self.hit.store(context.as_ptr(), Ordering::Relaxed);
        self.signals.store(signals.bits(), Ordering::SeqCst);
    }

    /// That is the stack pointer with which the call will be made.
    pub(crate) fn be_at(&self, sp: usize) {
        self.sp.store(sp, Ordering::Relaxed);
    }

    /// The thread is about to wait for `signals`, all ours, which are really blocked until [`Wait::end`].
    pub(crate) fn begin_blocked(&self, signals: SignalSet) {
        self.be_at(BLOCKED);
        self.signals.store(signals.bits(), Ordering::SeqCst);
    }

    /// Whether those that are waited for are really blocked: they may be sent to the thread as they are.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_at(BLOCKED)
    }

    /// The hit is over: the call is made.
    pub(crate) fn be_made(&self) {
        self.hit.store(null_mut(), Ordering::Relaxed);
    }

    /// Whether [`Wait::begin`] was called, and its hit is not over yet.
    pub(crate) fn is_beginning(&self) -> bool {
        !self.hit.load(Ordering::Relaxed).is_null()
    }

    /// Whether that hit is the one of `context`.
    #[inline]
    pub(crate) fn begins_in(&self, context: UContext) -> bool {
        self.hit.load(Ordering::Relaxed) == context.as_ptr()
    }

    /// It waits no more.
    pub(crate) fn end(&self) {
        self.be_made();
        self.signals.store(0, Ordering::SeqCst);
    }

    /// Those of ours that the thread may be waiting for.
    pub(crate) fn signals(&self) -> SignalSet {
        SignalSet::from_bits(self.signals.load(Ordering::SeqCst))
    }

    /// Whether the stack pointer was that.
    #[inline]
    pub(crate) fn is_at(&self, sp: usize) -> bool {
        self.sp.load(Ordering::Relaxed) == sp
    }
}
