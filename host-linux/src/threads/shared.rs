//! Threads that share one thread-local storage: children of `clone` with `CLONE_VM` and without
//! `CLONE_SETTLS`.
//!
//! The thread-local word cannot tell them apart. So before the first such child is made, [`share`] clears the
//! word for good: each of these threads asks the kernel for its number, and finds its block in the table by
//! that.

use super::block::Block;
use super::copy;
use super::dead::reclaim_if_dead;
use super::number::Word;
use super::owner::NOBODY;
use super::table::Table;
use crate::{arch, sys};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

/// Whether any storage was ever shared.
static ANY: AtomicBool = AtomicBool::new(false);

/// The thread that is forking, as long as it is one of these.
static FORKING: AtomicU32 = AtomicU32::new(NOBODY);

/// Declares that the calling thread, the owner of `block`, shares its storage: the child that it is about to
/// make gets a block of its own.
pub(super) fn share(block: &Block) {
    if block.owner.is_shared() {
        return;
    }
    let word = arch::thread_slot();
    ANY.store(true, Ordering::Relaxed);
    block.owner.share(sys::thread_id(), word as usize);
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the slot is this thread's own word, still.
    unsafe { word.write(0) };
}

/// The calling thread's block, if it has one although its word is zero.
#[cold]
pub(super) fn current() -> Option<&'static Block> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    find(sys::thread_id()).or_else(forking)
}

/// The block of the thread that has forked this process, in which [`forked`] has not been called yet.
fn forking() -> Option<&'static Block> {
    let number = FORKING.load(Ordering::Relaxed);
    if number != NOBODY && copy::is_copy() { find(number) } else { None }
}

/// The block of thread `number`, which shares the calling thread's word.
fn find(number: u32) -> Option<&'static Block> {
    let word = arch::thread_slot() as usize;
    let owns = |block: &&Block| block.owner.shares(word) && block.owner.is(number);
    Table::get()?.used().find(owns)
}

/// Makes `block` the calling thread's, if that thread shares its word with a living one.
pub(super) fn own(table: Table, block: &Block) -> bool {
    let word = arch::thread_slot() as usize;
    let lives = |other: &'static Block| other.owner.shares(word) && !reclaim_if_dead(other);
    let is_shared = ANY.load(Ordering::Relaxed) && table.used().any(lives);
    if is_shared {
        let thread = sys::thread_id();
        block.owner.set(thread, Word(0));
        block.owner.share(thread, word);
    }
    is_shared
}

/// Before a fork.
pub(crate) fn hold() {
    if ANY.load(Ordering::Relaxed) {
        FORKING.store(sys::thread_id(), Ordering::Relaxed);
    }
}

/// After a fork, in the process that has forked.
pub(crate) fn release() {
    FORKING.store(NOBODY, Ordering::Relaxed);
}

/// In a fork's child: the word is its own again, as no other thread shares its memory.
pub(super) fn forked() {
    let number = FORKING.swap(NOBODY, Ordering::Relaxed);
    let Some(block) = (number != NOBODY).then(|| find(number)).flatten() else { return };
    block.owner.unshare();
    // SAFETY: the slot is this thread's own word.
    unsafe { arch::thread_slot().write(core::ptr::from_ref(block) as usize) };
}
