//! Blocks of dead threads come back.
//!
//! A thread may end without giving its block back. The block comes back once the kernel says that the thread
//! is gone. Code that visits all threads asks, and so does a thread that takes a block while half of the
//! blocks may belong to dead threads.

use super::block::{Block, Words};
use super::copy;
use super::owner::Life;
use super::table::{self, BLOCKS, Table};
use crate::arch::Native;
use core::sync::atomic::{AtomicU32, Ordering};
use probe_core::host::Task;
use std::sync::OnceLock;

/// The number of blocks in use at which the next look for dead threads is due.
static LOOK_AT: AtomicU32 = AtomicU32::new(FEW);
/// The number of blocks that dead threads may keep, however few threads live.
const FEW: u32 = 16;
/// The functions to call when threads end.
static EXITS: OnceLock<Exits> = OnceLock::new();
/// Called with a thread's words when it has ended.
static ON_END: OnceLock<fn(&Words)> = OnceLock::new();

/// The functions to call when threads end.
#[derive(Clone, Copy)]
pub(crate) struct Exits {
    /// With the task of a thread that has ended.
    pub(crate) ended: fn(&Task<Native>),
    /// Called with the task of a thread that is about to end and its stack pointer; `true` if no call is left
    /// that may return.
    pub(crate) ending: fn(&Task<Native>, usize) -> bool,
}

pub(super) fn start(exits: Exits) {
    EXITS.get_or_init(|| exits);
}

/// Calls `hook` with the [`words`](super::words) of every thread that ends: in that thread, or in another one
/// that has found it dead. Only the first hook counts.
pub fn on_thread_end(hook: fn(&Words)) {
    let _ = ON_END.set(hook);
}

/// Whether the calling thread, which is about to end, has no followed call left that may return.
pub(super) fn leaves_no_call(block: &Block) -> bool {
    let here = core::ptr::from_ref(&block) as usize;
    EXITS.get().is_some_and(|exits| (exits.ending)(&block.task, here))
}

/// Cleans and frees a block if its owner is dead; returns whether it did.
pub(super) fn reclaim_if_dead(block: &'static Block) -> bool {
    let life = block.owner.look(copy::process());
    if life == Life::Cleaning {
        reclaim(block);
    }
    life != Life::Lives
}

/// The owner of the block returns from no call any more.
pub(super) fn end_calls(block: &Block) {
    if let Some(exits) = EXITS.get() {
        (exits.ended)(&block.task);
    }
}

/// Cleans the block of a dead thread and frees it.
pub(super) fn reclaim(block: &'static Block) {
    end_calls(block);
    // SAFETY: the owner is dead or about to be and has no active hit, so nobody else uses the context.
    unsafe { block.context.reset() };
    if let Some(hook) = ON_END.get() {
        hook(&block.words);
    }
    block.reset();
    table::free(block);
}

/// Whether so many blocks are in use that a look for dead threads is due.
pub(super) fn may_be_many() -> bool {
    table::used() >= LOOK_AT.load(Ordering::Relaxed)
}

/// Looks for the blocks of dead threads: among all blocks, or only among those whose threads were ending.
pub(super) fn look(table: Table, at_all: bool) {
    let mut living = 0;
    for other in table.used() {
        if at_all || other.owner.is_ending() {
            living += u32::from(!reclaim_if_dead(other));
        }
    }
    if at_all {
        LOOK_AT.store(look_at(living), Ordering::Relaxed);
    }
}

/// The number of blocks in use at which to look next, when `living` of them belong to living threads: before
/// the table is full, and otherwise so late that a new thread costs a question to the kernel or two, on
/// average.
fn look_at(living: u32) -> u32 {
    living + living.max(FEW).min((BLOCKS as u32).saturating_sub(living) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_threads_blocks_are_looked_for_before_there_are_none() {
        assert_eq!(look_at(1), 1 + FEW);
        assert_eq!(look_at(100), 200);
        let blocks = BLOCKS as u32;
        assert!((1..blocks - 1).all(|living| (living + 1..blocks).contains(&look_at(living))));
    }
}
