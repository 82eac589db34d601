//! A system call by which a thread waits for signals of a set.
//!
//! ```text
//!                  the hit is over        it is answered, or interrupted in the kernel
//!  ┌─► Beginning ────────────────► Made ───────────────────────────────────┐
//!  │      ▲                         │                                      │
//!  │      └─────────────────────────┘ a signal comes before the call       ▼
//! None ◄───────────────────────────────────────────────────────────────── None
//!  │                              a handler of the program's runs          ▲
//!  └─► Blocked ◄───────────────────────────────────────────► suspended     │
//!         └────────────────────────────────────────────────────────────────┘
//! ```
//! Whoever waits says so first ([`Noted`]) and looks then what has been written down; whoever writes a signal
//! down does that first ([`WrittenDown`]) and looks then who waits. One of both sees the other. So each way
//! into `Beginning` or `Blocked` ends in a look: nothing lies written down when the kernel is called.

use super::sent::WrittenDown;
use crate::atomics::{AtomicPtr, AtomicUsize, Ordering, fence};
use crate::sys::SignalSet;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;

/// A system call that waits for signals of a set (`rt_sigtimedwait`), as it is made: the kernel is given a
/// set without ours, which come to our handler, or has them really blocked.
pub(crate) struct Wait {
    /// Those of ours that it waits for, and [`BLOCKED`]; 0: there is none.
    signals: AtomicUsize,
    /// The set that the kernel is given, as the kernel reads it.
    set: UnsafeCell<SignalSet>,
    /// The program's set, in memory.
    of_program: AtomicUsize,
    /// The probed instruction.
    place: AtomicUsize,
    /// The stack pointer in the call.
    sp: AtomicUsize,
    /// The frame of the hit before the call, until that hit is over.
    hit: AtomicPtr<c_void>,
}

/// What a wait begins with once more.
pub(crate) struct Begun {
    /// The probed instruction.
    pub(crate) place: usize,
    /// The program's set, in memory.
    pub(crate) of_program: usize,
}

/// Those that are waited for are really blocked. No signal of ours has this number.
const BLOCKED: usize = 1 << (usize::BITS - 1);

/// A set of ours, whose numbers are below 31: of 64 bits, 32-bit PowerPC exchanges 32 at once.
const fn word(signals: SignalSet) -> usize {
    signals.bits() as usize
}

/// Proof that others see who waits from now on. Only then is looked what has been written down.
#[must_use = "something may be here already"]
pub(crate) struct Noted(());

/// A wait that a handler of the program's has interrupted, if there was one.
#[must_use = "the wait goes on when the handler returns"]
pub(crate) struct Suspended(usize);

/// Who takes a signal that has just been written down, in the thread that has done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// This thread, which looks once more at the end of its hit.
    WhenHitEnds,
    /// Its call does, if that has been interrupted; any other wait is over.
    IfInterrupted,
    /// Others.
    Others,
}

impl Wait {
    /// None yet.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            signals: AtomicUsize::new(0),
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

    /// The thread is about to wait for `signals`, all ours, and those of `others`, in the hit that has
    /// interrupted the frame `hit`.
    pub(crate) fn begin(
        &self,
        signals: SignalSet,
        others: SignalSet,
        begun: Begun,
        hit: *mut c_void,
    ) -> Noted {
        // SAFETY: the thread's own, which is not in the system call.
        unsafe { self.set.get().write(others) };
        self.of_program.store(begun.of_program, Ordering::Relaxed);
        self.place.store(begun.place, Ordering::Relaxed);
        self.hit.store(hit, Ordering::Relaxed);
        self.note(word(signals))
    }

    /// That is the stack pointer with which the call will be made.
    pub(crate) fn be_at(&self, sp: usize) {
        self.sp.store(sp, Ordering::Relaxed);
    }

    /// The thread is about to wait for `signals`, all ours, which are really blocked until [`Wait::end`]. All
    /// signals are blocked.
    pub(crate) fn begin_blocked(&self, signals: SignalSet) -> Noted {
        self.note(word(signals) | BLOCKED)
    }

    /// A handler of the program's is about to run that has interrupted whatever wait there is. One that
    /// leaves by a longjmp leaves the wait, too.
    pub(crate) fn suspend(&self) -> Suspended {
        let signals = self.signals.load(Ordering::Relaxed);
        if signals & BLOCKED == 0 {
            return Suspended(0);
        }
        self.signals.store(0, Ordering::SeqCst);
        Suspended(signals)
    }

    /// That handler has returned. All signals are blocked until what has come meanwhile has been looked for.
    pub(crate) fn resume(&self, Suspended(signals): Suspended) -> Option<Noted> {
        (signals != 0).then(|| self.note(signals))
    }

    fn note(&self, signals: usize) -> Noted {
        self.signals.store(signals, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Noted(())
    }

    /// The hit is over: the call is made.
    pub(crate) fn be_made(&self) {
        self.hit.store(null_mut(), Ordering::Relaxed);
    }

    /// Whether the hit in which [`Wait::begin`] was called is the one of the frame `hit`, and is not over.
    #[inline]
    pub(crate) fn begins_in(&self, hit: *mut c_void) -> bool {
        self.hit.load(Ordering::Relaxed) == hit
    }

    /// Who takes what this thread has written down while it waits, or waits no more.
    pub(crate) fn takes(&self, _: &WrittenDown) -> Takes {
        if !self.hit.load(Ordering::Relaxed).is_null() {
            return Takes::WhenHitEnds;
        }
        match self.signals.load(Ordering::Relaxed) {
            0 => Takes::Others,
            // It comes to our handler before the call or behind it alone: who looks then finds it.
            signals if signals & BLOCKED != 0 => Takes::Others,
            _ => Takes::IfInterrupted,
        }
    }

    /// It waits no more.
    pub(crate) fn end(&self) {
        self.be_made();
        self.signals.store(0, Ordering::SeqCst);
    }

    /// Those of ours that the thread, which is this one, waits for.
    pub(crate) fn own_signals(&self) -> SignalSet {
        SignalSet::from_bits((self.signals.load(Ordering::Relaxed) & !BLOCKED) as u64)
    }

    /// What a signal that has been written down may be answered by: whether a thread waits for it, and how.
    pub(crate) fn waits_for(&self, signal: SignalSet, _: &WrittenDown) -> Option<How> {
        let signals = self.signals.load(Ordering::SeqCst);
        let how = if signals & BLOCKED == 0 { How::Knocked } else { How::Blocked };
        (signals & word(signal) != 0).then_some(how)
    }

    /// Whether the stack pointer was that.
    #[inline]
    pub(crate) fn is_at(&self, sp: usize) -> bool {
        self.sp.load(Ordering::Relaxed) == sp
    }
}

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// What it waits for comes to our handler.
    Knocked,
    /// What it waits for is really blocked: it may be sent to the thread as it is.
    Blocked,
}
