//! Signals that were sent to a thread or a process while the program blocks them, where the kernel must not.

use crate::atomics::{AtomicU32, Ordering, fence};
use crate::signals::owned::NEVER;
use crate::sys::{SigInfo, SignalSet};
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// Signals that were sent and wait, one of each number, as the kernel keeps them.
pub(crate) struct Sent {
    /// For each of [`NEVER`] where it is: [`FREE`], [`CHANGING`] or [`FULL`].
    states: [AtomicU32; NEVER.len()],
    infos: [UnsafeCell<SigInfo>; NEVER.len()],
}

// SAFETY: an element of `infos` is touched by whoever has changed its state to `CHANGING`.
unsafe impl Sync for Sent {}

/// Nothing waits. A block that was never used is all zero.
const FREE: u32 = 0;
/// Somebody writes or reads it.
const CHANGING: u32 = 1;
/// A signal waits.
const FULL: u32 = 2;

/// Proof that a signal has been written down where whoever waits looks. Only then is asked who waits: one of
/// both sees the other.
#[must_use = "somebody may be waiting for it"]
pub(crate) struct WrittenDown(());

impl Sent {
    /// Nothing; `states` are all 0.
    pub(crate) const fn of(states: [AtomicU32; NEVER.len()]) -> Self {
        Self { states, infos: [const { UnsafeCell::new(SigInfo::fault(0, 0, 0)) }; NEVER.len()] }
    }

    /// Keeps a signal, unless one of that number waits already.
    pub(crate) fn put(&self, info: &SigInfo) -> WrittenDown {
        if let Some(at) = NEVER.iter().position(|&signal| signal == info.signal)
            && self.change(at, FREE)
        {
            // SAFETY: its state says that it is ours.
            unsafe { self.infos[at].get().write(*info) };
            self.states[at].store(FULL, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        WrittenDown(())
    }

    /// Keeps a signal in place of one of that number that waits already.
    pub(crate) fn replace(&self, info: &SigInfo) -> WrittenDown {
        self.take(SignalSet::EMPTY.with(info.signal));
        self.put(info)
    }

    /// Takes one of these signals that waits.
    pub(crate) fn take(&self, of: SignalSet) -> Option<SigInfo> {
        let at = (0..NEVER.len()).find(|&at| of.has(NEVER[at]) && self.change(at, FULL))?;
        // SAFETY: its state says that it is ours.
        let info = unsafe { self.infos[at].get().read() };
        self.states[at].store(FREE, Ordering::Release);
        Some(info)
    }

    fn change(&self, at: usize, from: u32) -> bool {
        self.states[at].compare_exchange(from, CHANGING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// What waits.
    #[inline]
    pub(crate) fn set(&self) -> SignalSet {
        let waits = |&(at, _): &(usize, &c_int)| self.states[at].load(Ordering::SeqCst) != FREE;
        NEVER.iter().enumerate().filter(waits).fold(SignalSet::EMPTY, |set, (_, &signal)| set.with(signal))
    }

    /// Drops what waits. Nobody else is there who could write or read.
    pub(crate) fn clear(&self) {
        self.states.iter().for_each(|state| state.store(FREE, Ordering::Relaxed));
    }
}

#[cfg(test)]
impl Sent {
    /// Nothing.
    pub(crate) fn empty() -> Self {
        Self::of(core::array::from_fn(|_| AtomicU32::new(FREE)))
    }
}
