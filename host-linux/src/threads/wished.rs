//! Which of the signals that the kernel must not block the program believes it has blocked, and what was sent
//! meanwhile.

use super::copy;
use super::wait::Wait;
use crate::signals::owned::NEVER_BLOCKED;
use crate::sys::{SigInfo, SignalSet};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The signals of [`NEVER_BLOCKED`].
const SIGNALS: [c_int; 3] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS];

/// What the program wishes of these signals in one thread.
pub(crate) struct Wished {
    /// Those that are blocked, in its view.
    blocked: AtomicU64,
    /// The same for a child of `vfork`, which runs in its parent's memory; 0: there is none ([`LENT`]).
    lent: AtomicU64,
    /// Whether the thread has said what it has blocked. One that starts has not: libc has blocked all for it.
    is_told: AtomicBool,
    /// The system call by which the thread may be waiting.
    pub(crate) wait: Wait,
    /// Whether something has to come at the end of the hit.
    is_due: AtomicBool,
    /// What was sent to the thread while it was blocked.
    pub(crate) sent: Sent,
    /// What was sent to the process and is this thread's now, which another one knocks at for it.
    pub(crate) passed: Sent,
}

/// In [`Wished::lent`]: a child may be running. No signal has this number among those that are blocked here.
const LENT: u64 = 1 << 63;

impl Wished {
    /// Those that the program has blocked.
    #[inline]
    pub(crate) fn blocked(&self) -> SignalSet {
        SignalSet::from_bits(self.of_running().load(Ordering::SeqCst) & NEVER_BLOCKED.bits())
    }

    /// From now on those of `mask` are blocked.
    pub(crate) fn block(&self, mask: SignalSet) {
        self.is_told.store(true, Ordering::SeqCst);
        let word = self.of_running();
        let kept = word.load(Ordering::Relaxed) & LENT;
        word.store(mask.bits() & NEVER_BLOCKED.bits() | kept, Ordering::SeqCst);
    }

    /// The thread makes a child that runs in its memory, and waits for it.
    pub(crate) fn lend(&self) {
        self.lent.store(self.blocked().bits() | LENT, Ordering::Relaxed);
    }

    /// What is blocked in the process that runs this. The kernel is asked which one that is only where there
    /// may be two.
    #[inline]
    fn of_running(&self) -> &AtomicU64 {
        if self.lent.load(Ordering::Relaxed) == 0 { &self.blocked } else { self.of_either() }
    }

    /// Whether [`Wished::block`] was called.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::SeqCst)
    }

    /// Those that the thread has blocked whose block this is, which may be another one than the calling.
    pub(crate) fn blocked_by_owner(&self) -> SignalSet {
        SignalSet::from_bits(self.blocked.load(Ordering::SeqCst))
    }

    /// Whether a child runs this, in its parent's memory.
    pub(crate) fn is_lent(&self) -> bool {
        core::ptr::eq(self.of_running(), &self.lent)
    }

    #[cold]
    fn of_either(&self) -> &AtomicU64 {
        if copy::is_guest() {
            return &self.lent;
        }
        self.lent.store(0, Ordering::Relaxed);
        &self.blocked
    }

    /// Something has to come at the end of the thread's next hit.
    pub(crate) fn be_due(&self) {
        self.is_due.store(true, Ordering::SeqCst);
    }

    /// Whether [`Wished::be_due`] was called since the last time.
    #[inline]
    pub(crate) fn take_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::SeqCst)
    }

    /// The thread is dead.
    pub(super) fn reset(&self) {
        [&self.blocked, &self.lent].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.wait.end();
        self.is_due.store(false, Ordering::Relaxed);
        self.is_told.store(false, Ordering::Relaxed);
        self.forget();
    }

    /// Drops what waits.
    pub(crate) fn forget(&self) {
        self.sent.clear();
        self.passed.clear();
    }
}

/// Signals that were sent and wait, one of each number, as the kernel keeps them.
pub(crate) struct Sent {
    /// For each of [`SIGNALS`] where it is: [`FREE`], [`CHANGING`] or [`FULL`].
    states: [AtomicU32; SIGNALS.len()],
    infos: [UnsafeCell<SigInfo>; SIGNALS.len()],
}

// SAFETY: an element of `infos` is touched by whoever has changed its state to `CHANGING`.
unsafe impl Sync for Sent {}

/// Nothing waits. A block that was never used is all zero.
const FREE: u32 = 0;
/// Somebody writes or reads it.
const CHANGING: u32 = 1;
/// A signal waits.
const FULL: u32 = 2;

impl Sent {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self {
            states: [const { AtomicU32::new(FREE) }; SIGNALS.len()],
            infos: [const { UnsafeCell::new(SigInfo::fault(0, 0, 0)) }; SIGNALS.len()],
        }
    }

    /// Keeps a signal, unless one of that number waits already.
    pub(crate) fn put(&self, info: &SigInfo) {
        let Some(at) = SIGNALS.iter().position(|&signal| signal == info.signal) else { return };
        if self.change(at, FREE) {
            // SAFETY: its state says that it is ours.
            unsafe { self.infos[at].get().write(*info) };
            self.states[at].store(FULL, Ordering::SeqCst);
        }
    }

    /// Keeps a signal in place of one of that number that waits already.
    pub(crate) fn replace(&self, info: &SigInfo) {
        self.take(SignalSet::EMPTY.with(info.signal));
        self.put(info);
    }

    /// Takes one of these signals that waits.
    pub(crate) fn take(&self, of: SignalSet) -> Option<SigInfo> {
        let at = (0..SIGNALS.len()).find(|&at| of.has(SIGNALS[at]) && self.change(at, FULL))?;
        // SAFETY: its state says that it is ours.
        let info = unsafe { self.infos[at].get().read() };
        self.states[at].store(FREE, Ordering::Release);
        Some(info)
    }

    /// In one order with [`super::wait::Wait::begin`]: who waits finds what is here, or who puts it here
    /// finds who waits.
    fn change(&self, at: usize, from: u32) -> bool {
        self.states[at].compare_exchange(from, CHANGING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// What waits.
    #[inline]
    pub(crate) fn set(&self) -> SignalSet {
        let waits = |&(at, _): &(usize, &c_int)| self.states[at].load(Ordering::SeqCst) != FREE;
        SIGNALS.iter().enumerate().filter(waits).fold(SignalSet::EMPTY, |set, (_, &signal)| set.with(signal))
    }

    /// Drops what waits. Nobody else is there who could write or read.
    pub(crate) fn clear(&self) {
        self.states.iter().for_each(|state| state.store(FREE, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_signal_one_waits_and_is_taken_once() {
        let sent = Sent::new();
        let info = |signal, code| SigInfo::fault(signal, code, 0);
        sent.put(&info(libc::SIGTRAP, -1));
        sent.put(&info(libc::SIGTRAP, -2));
        sent.put(&info(libc::SIGBUS, -6));
        sent.put(&info(libc::SIGUSR1, 0));
        assert_eq!(sent.set(), SignalSet::EMPTY.with(libc::SIGTRAP).with(libc::SIGBUS));
        assert!(sent.take(SignalSet::EMPTY.with(libc::SIGSEGV)).is_none());
        let taken = sent.take(SignalSet::ALL).map(|info| (info.signal, info.code));
        assert_eq!(taken, Some((libc::SIGTRAP, -1)));
        assert_eq!(sent.take(SignalSet::ALL).map(|info| info.signal), Some(libc::SIGBUS));
        assert!(sent.take(SignalSet::ALL).is_none() && sent.set() == SignalSet::EMPTY);
    }

    #[test]
    fn only_what_must_not_be_blocked_is_wished_for() {
        let zero = || AtomicU64::new(0);
        let wished = Wished {
            blocked: zero(),
            lent: zero(),
            is_told: AtomicBool::new(false),
            wait: Wait::new(),
            is_due: AtomicBool::new(false),
            sent: Sent::new(),
            passed: Sent::new(),
        };
        wished.block(SignalSet::ALL);
        assert_eq!(wished.blocked(), NEVER_BLOCKED);
        // In the process that has made the child.
        wished.lend();
        wished.block(SignalSet::EMPTY);
        assert_eq!(wished.blocked(), SignalSet::EMPTY);
        wished.be_due();
        assert!(wished.take_due() && !wished.take_due());
    }
}
