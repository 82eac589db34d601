//! Which thread a block belongs to.

use super::number::Word;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The owner of a block that has none.
pub(super) const NOBODY: u32 = 0;

/// An owner that is known to be dead; the block waits to be cleaned.
const GONE: u32 = u32::MAX;

/// A living owner that has not written its number yet.
const STARTING: u32 = u32::MAX - 1;

/// The owner is dead and somebody is cleaning up.
const CLEANING: u32 = u32::MAX - 2;

/// A block's owner.
pub(super) struct Owner {
    /// The thread, [`NOBODY`], [`STARTING`], [`GONE`] or [`CLEANING`].
    thread: AtomicU32,
    /// Where libc keeps the owner's number ([`Word`]).
    number_at: AtomicUsize,
    /// The thread is ending, but calls that it follows may still return.
    is_ending: AtomicBool,
    /// The address of the thread-local word that leads to the block, if the owner shares that word with other
    /// threads; else 0.
    shared_word: AtomicUsize,
}

/// Whether an owner lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Nobody knows that it is dead; also where there is no owner.
    Lives,
    /// It is dead, and somebody else cleans up.
    Dead,
    /// It is dead, and the caller cleans up.
    Cleaning,
}

impl Owner {
    pub(super) fn is_nobody(&self) -> bool {
        self.is(NOBODY)
    }

    /// Whether it is this thread.
    pub(super) fn is(&self, thread: u32) -> bool {
        self.thread.load(Ordering::Acquire) == thread
    }

    /// The owner's number, if it has one and that is written down.
    pub(super) fn number(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Acquire))
            .filter(|thread| ![NOBODY, GONE, STARTING, CLEANING].contains(thread))
    }

    /// Whether libc keeps the owner's number there.
    pub(super) fn has_number_at(&self, word: Word) -> bool {
        self.number_at.load(Ordering::Relaxed) == word.0
    }

    fn word(&self) -> Word {
        Word(self.number_at.load(Ordering::Relaxed))
    }

    /// A thread takes the block.
    pub(super) fn begin(&self) {
        self.thread.store(STARTING, Ordering::Release);
    }

    /// The thread's number is known.
    pub(super) fn set(&self, thread: u32, word: Word) {
        self.number_at.store(word.0, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Release);
    }

    /// Notes that another thread has this number now: the former one has left the block.
    pub(super) fn left_by(&self, thread: u32) {
        let _ = self.thread.compare_exchange(thread, GONE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether [`Owner::end`] was called.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// The thread ends, but the block stays until it is dead.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Looks whether the owner is dead. `process` is the process that made the memory. Exactly one of several
    /// finders is to clean up.
    pub(super) fn look(&self, process: u32) -> Life {
        let thread = self.thread.load(Ordering::Acquire);
        let is_dead = match thread {
            NOBODY | STARTING | CLEANING => false,
            GONE => true,
            thread => !self.word().lives(thread, process),
        };
        if !is_dead {
            return Life::Lives;
        }
        let made = self.thread.compare_exchange(thread, CLEANING, Ordering::AcqRel, Ordering::Relaxed);
        if made.is_ok() { Life::Cleaning } else { Life::Dead }
    }

    /// In a fork's child: makes its only thread, number `thread`, the owner.
    pub(super) fn forked(&self, thread: u32, process: u32) {
        // A child that was made behind libc's back has its parent's number there.
        let word = self.word();
        self.set(thread, if word.lives(thread, process) { word } else { Word(0) });
    }

    /// Whether the thread-local word of the owner leads to other blocks, too.
    pub(super) fn is_shared(&self) -> bool {
        !self.shares(0)
    }

    /// Whether the owner shares this word.
    pub(super) fn shares(&self, word: usize) -> bool {
        self.shared_word.load(Ordering::Acquire) == word
    }

    /// Notes that the owner, thread `thread`, shares its thread-local word from now on.
    pub(super) fn share(&self, thread: u32, word: usize) {
        // A block whose owner is still being written down has none yet.
        self.thread.store(thread, Ordering::Release);
        self.shared_word.store(word, Ordering::Release);
    }

    /// The owner's word is its own again.
    pub(super) fn unshare(&self) {
        self.shared_word.store(0, Ordering::Release);
    }

    /// The thread is dead, and the block is cleaned.
    pub(super) fn reset(&self) {
        self.is_ending.store(false, Ordering::Relaxed);
        self.unshare();
    }

    /// The block is nobody's, for others to take.
    pub(super) fn leave(&self) {
        self.thread.store(NOBODY, Ordering::Release);
    }
}
