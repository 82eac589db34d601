//! Which of the signals that the kernel must not block the program believes it has blocked, and what was sent
//! meanwhile.

use super::copy;
use super::sent::Sent;
use super::wait::Wait;
use crate::signals::owned::NEVER_BLOCKED;
use crate::sys::SignalSet;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the program wishes of these signals in one thread.
pub(crate) struct Wished {
    /// Those that are blocked, in its view.
    blocked: AtomicUsize,
    /// The same for a child of `vfork`, which runs in its parent's memory; 0: there is none ([`LENT`]).
    lent: AtomicUsize,
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

/// Such a set is a word: 32-bit PowerPC has no atomics of 64 bits.
const _: () = assert!(NEVER_BLOCKED.bits() < 1 << 31);

/// In [`Wished::lent`]: a child may be running. No signal has this number among those that are blocked here.
const LENT: usize = 1 << (usize::BITS - 1);

impl Wished {
    /// Those that the program has blocked.
    #[inline]
    pub(crate) fn blocked(&self) -> SignalSet {
        SignalSet::from_bits(self.of_running().load(Ordering::SeqCst) as u64 & NEVER_BLOCKED.bits())
    }

    /// From now on those of `mask` are blocked.
    pub(crate) fn block(&self, mask: SignalSet) {
        self.is_told.store(true, Ordering::SeqCst);
        let word = self.of_running();
        let kept = word.load(Ordering::Relaxed) & LENT;
        word.store((mask.bits() & NEVER_BLOCKED.bits()) as usize | kept, Ordering::SeqCst);
    }

    /// The thread makes a child that runs in its memory, and waits for it.
    pub(crate) fn lend(&self) {
        self.lent.store(self.blocked().bits() as usize | LENT, Ordering::Relaxed);
    }

    /// What is blocked in the process that runs this. The kernel is asked which one that is only where there
    /// may be two.
    #[inline]
    fn of_running(&self) -> &AtomicUsize {
        if self.lent.load(Ordering::Relaxed) == 0 { &self.blocked } else { self.of_either() }
    }

    /// Whether [`Wished::block`] was called.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::SeqCst)
    }

    /// Those that the thread has blocked whose block this is, which may be another one than the calling.
    pub(crate) fn blocked_by_owner(&self) -> SignalSet {
        SignalSet::from_bits(self.blocked.load(Ordering::SeqCst) as u64)
    }

    /// Whether a child runs this, in its parent's memory.
    pub(crate) fn is_lent(&self) -> bool {
        core::ptr::eq(self.of_running(), &self.lent)
    }

    #[cold]
    fn of_either(&self) -> &AtomicUsize {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SigInfo;

    #[test]
    fn of_each_signal_one_waits_and_is_taken_once() {
        let sent = Sent::empty();
        let info = |signal, code| SigInfo::fault(signal, code, 0);
        let _ = sent.put(&info(libc::SIGTRAP, -1));
        let _ = sent.put(&info(libc::SIGTRAP, -2));
        let _ = sent.put(&info(libc::SIGBUS, -6));
        let _ = sent.put(&info(libc::SIGUSR1, 0));
        assert_eq!(sent.set(), SignalSet::EMPTY.with(libc::SIGTRAP).with(libc::SIGBUS));
        assert!(sent.take(SignalSet::EMPTY.with(libc::SIGSEGV)).is_none());
        let taken = sent.take(SignalSet::ALL).map(|info| (info.signal, info.code));
        assert_eq!(taken, Some((libc::SIGTRAP, -1)));
        assert_eq!(sent.take(SignalSet::ALL).map(|info| info.signal), Some(libc::SIGBUS));
        assert!(sent.take(SignalSet::ALL).is_none() && sent.set() == SignalSet::EMPTY);
    }

    #[test]
    fn only_what_must_not_be_blocked_is_wished_for() {
        let zero = || AtomicUsize::new(0);
        let wished = Wished {
            blocked: zero(),
            lent: zero(),
            is_told: AtomicBool::new(false),
            wait: Wait::new(),
            is_due: AtomicBool::new(false),
            sent: Sent::empty(),
            passed: Sent::empty(),
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
