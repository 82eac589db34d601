//! Threads that share one thread-local storage: children of `clone` with `CLONE_VM` and without `CLONE_SETTLS`.
//!
//! The word there cannot tell them apart. So before the first such child is made, [`share`] clears the word for good: each of
//! these threads asks the kernel for its number, and finds its block in the table by that.

use super::{Block, NOBODY, Table, current_or_new};
use crate::arch;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, compiler_fence};

/// Whether any storage was ever shared.
static ANY: AtomicBool = AtomicBool::new(false);

/// The thread that is forking, as long as it is one of these.
static FORKING: AtomicU32 = AtomicU32::new(NOBODY);

/// The address of the word that a block's owner shares with others; 0: it is the owner's alone.
pub(super) struct SharedWord(AtomicUsize);

impl SharedWord {
    fn is_at(&self, word: usize) -> bool {
        self.0.load(Ordering::Acquire) == word
    }

    pub(super) fn is_shared(&self) -> bool {
        !self.is_at(0)
    }

    /// The block is nobody's any more.
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Lets the calling thread share its storage from now on. What it is about to make finds a block of its own.
pub(crate) fn share() {
    let word = arch::thread_slot();
    let Some(block) = current_or_new().filter(|block| !block.shared.is_shared()) else { return };
    // A block whose owner is still being written down has none yet.
    block.owner.store(sys::thread_id(), Ordering::Release);
    ANY.store(true, Ordering::Relaxed);
    block.shared.0.store(word as usize, Ordering::Release);
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the slot is this thread's own word, still.
    unsafe { word.write(0) };
}

/// The calling thread's block, if it has one although its word is zero.
#[cold]
pub(super) fn current() -> Option<&'static Block> {
    if ANY.load(Ordering::Relaxed) { find(sys::thread_id()) } else { None }
}

/// The block of thread `number`, which shares the calling thread's word.
fn find(number: u32) -> Option<&'static Block> {
    let word = arch::thread_slot() as usize;
    let owns = |block: &&Block| block.shared.is_at(word) && block.owner.load(Ordering::Acquire) == number;
    Table::get()?.used().find(owns)
}

/// Makes `block` the calling thread's, if that shares its word with a living one.
pub(super) fn own(table: Table, block: &Block) -> bool {
    let word = arch::thread_slot() as usize;
    let lives = |other: &Block| other.shared.is_at(word) && !other.reclaim_if_dead();
    let is_shared = ANY.load(Ordering::Relaxed) && table.used().any(lives);
    if is_shared {
        block.number_at.store(0, Ordering::Relaxed);
        block.owner.store(sys::thread_id(), Ordering::Release);
        block.shared.0.store(word, Ordering::Release);
    }
    is_shared
}

/// Before a fork.
pub(crate) fn hold() {
    if ANY.load(Ordering::Relaxed) {
        FORKING.store(sys::thread_id(), Ordering::Relaxed);
    }
}

/// In a fork's child: nobody shares its memory, so that its word is its own again.
pub(super) fn forked() {
    let number = FORKING.swap(NOBODY, Ordering::Relaxed);
    let Some(block) = (number != NOBODY).then(|| find(number)).flatten() else { return };
    block.shared.reset();
    // SAFETY: the slot is this thread's own word.
    unsafe { arch::thread_slot().write(core::ptr::from_ref(block) as usize) };
}
