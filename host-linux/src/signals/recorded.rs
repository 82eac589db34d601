//! Actions that signal handlers read while other threads change them.

use crate::sys::{Action, SignalSet};
use core::sync::atomic::{AtomicUsize, Ordering, fence};

/// An action that a signal handler can read while another thread changes it: a sequence lock.
pub(super) struct Recorded {
    /// Odd while it is being changed.
    sequence: AtomicUsize,
    handler: AtomicUsize,
    flags: AtomicUsize,
    mask: [AtomicUsize; 2],
}

impl Recorded {
    /// The default action.
    pub(super) const fn new() -> Self {
        Self {
            sequence: AtomicUsize::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicUsize::new(0),
            mask: [const { AtomicUsize::new(0) }; 2],
        }
    }

    /// The action.
    pub(super) fn read(&self) -> Action {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let [low, high] = &self.mask;
            let mask = low.load(Ordering::Relaxed) as u64 | (high.load(Ordering::Relaxed) as u64) << 32;
            let action = Action {
                handler: self.handler.load(Ordering::Relaxed),
                flags: self.flags.load(Ordering::Relaxed),
                restorer: 0,
                mask: SignalSet::from_bits(mask),
            };
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return action;
            }
            core::hint::spin_loop();
        }
    }

    /// Replaces it. One writer at a time, with all signals blocked: a reader on the same thread would wait for ever.
    pub(super) fn write(&self, action: &Action) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.handler.store(action.handler, Ordering::Relaxed);
        self.flags.store(action.flags, Ordering::Relaxed);
        let bits = action.mask.bits();
        let [low, high] = &self.mask;
        low.store(bits as u32 as usize, Ordering::Relaxed);
        high.store((bits >> 32) as usize, Ordering::Relaxed);
        self.sequence.store(before + 2, Ordering::Release);
    }
}
