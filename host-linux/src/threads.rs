//! The state of each thread: its context, its task, its alternate stack.
//!
//! A thread's block (`block`) comes from one mapping that is reserved at start (`table`), and is found
//! through one word of thread-local storage in the initial-exec model. So a thread's very first hit can take
//! a block in the signal handler: no lock, no allocation, no lazy thread-local storage.
//!
//! The destructor of a pthread key gives a thread's block back. A thread may end without running it, or take
//! a block again for hits after it (in libc's own clean-up): such a block comes back later (`dead`).

mod altstack;
mod block;
mod copy;
mod dead;
mod deferral;
mod errno;
mod executing;
mod fault;
mod free;
mod interrupted;
mod lent;
mod number;
mod owner;
#[cfg(any(feature = "mapped", all(test, target_arch = "x86_64", target_env = "gnu")))]
#[cfg_attr(not(feature = "mapped"), allow(dead_code, reason = "tested in any case"))]
pub(crate) mod pointer;
mod preparation;
mod sent;
mod settle;
mod shared;
mod standstill;
mod table;
mod wait;
mod wished;

pub use self::altstack::ALTSTACK_LEN;
pub(crate) use self::block::Block;
pub use self::block::Words;
pub(crate) use self::dead::Exits;
pub use self::dead::on_thread_end;
pub(crate) use self::executing::{IsAlone, Others, Replaced};
pub(crate) use self::sent::{Sent, WrittenDown};
pub(crate) use self::shared::{hold, release};
pub(crate) use self::standstill::{Standing, is_asked};
pub(crate) use self::wait::{Begun, How, Noted, Takes};

use self::table::Table;
use crate::arch::{self, Native, UContext};
use crate::signals::owned::BLOCKED;
use crate::sys;
use core::ffi::{c_int, c_void};
use probe_core::host::Context;

/// Reserves the table.
///
/// # Errors
/// The errno: no address space.
pub(crate) fn start(exits: Exits) -> Result<(), c_int> {
    table::start(|| {
        dead::start(exits);
        copy::start();
        settle::start(thread_exit);
    })
}

/// Finds out how threads are numbered without the kernel. Our handlers are in place.
pub(crate) fn learn_numbers() {
    number::start();
}

/// Words of the calling thread, for the embedding program: zero in a new thread, kept in a fork's child.
/// `None` where there is no room for another thread. They serve handlers, where thread-local variables do not
/// work.
#[inline]
pub fn words() -> Option<&'static Words> {
    current_or_new().map(|block| &block.words)
}

/// The calling thread's number, in a handler. The kernel is asked only in forked processes: those other than
/// `process`.
pub fn number(process: u32) -> u32 {
    let block = current().filter(|_| copy::process() == process);
    block.and_then(|block| block.owner.number()).unwrap_or_else(sys::thread_id)
}

/// Whether this is a child that runs in another process's memory (`vfork`, `clone` with CLONE_VM): its writes
/// are seen there.
pub fn is_guest() -> bool {
    copy::is_guest()
}

/// Whether the calling thread is in a hit: in code that has interrupted one.
pub fn is_in_hit() -> bool {
    current().is_some_and(Block::is_in_hit)
}

/// Whether a call that is followed in any thread has not returned yet.
pub fn follow_calls() -> bool {
    Table::get().into_iter().flat_map(Table::used).any(|block| !block.task.is_idle())
}

/// The calling thread returns from none of its followed calls any more, as it ends its process: they count as
/// abandoned, and their data is dropped (RET_13); so are those of threads that have ended in what they
/// followed. Not in a hit, and not in a child that runs in its parent's memory ([`is_guest`]).
pub fn end_calls() {
    if let Some(block) = current() {
        dead::end_calls(block);
    }
    if let Some(table) = Table::get() {
        dead::look(table, false);
    }
}

/// Finds out how threads are told apart by their thread pointers; `false` if they cannot be.
#[cfg(feature = "mapped")]
pub fn learn_by_pointer() -> bool {
    pointer::learn()
}

/// The calling thread's block, if it has one.
#[inline]
pub(crate) fn current() -> Option<&'static Block> {
    // SAFETY: the slot is this thread's own word.
    let block = unsafe { arch::thread_slot().read() } as *const Block;
    // SAFETY: only `take` and `shared` store into it: null or a block of the table, which is never unmapped.
    unsafe { block.as_ref() }.or_else(shared::current)
}

/// The calling thread's block; takes one if it has none. `None`: all are taken.
#[inline]
pub(crate) fn current_or_new() -> Option<&'static Block> {
    current().or_else(take)
}

/// Prepares the calling thread before its first hit: gives it a block and an alternate stack.
///
/// Needs not be called: a first hit does the same. Called at a thread's start it saves that hit one trap.
pub fn thread_started() {
    let Some(block) = current_or_new() else { return };
    if !block.errno.is_known() {
        settle::settle(block);
    }
    block.stacks.put_early();
}

/// Declares that the calling thread shares its storage from now on: the child that it is about to make gets a
/// block of its own.
pub(crate) fn share() {
    if let Some(block) = current_or_new() {
        shared::share(block);
    }
}

/// Lets the calling thread make a child that runs in its memory while it waits.
pub(crate) fn lend() {
    if let Some(block) = current_or_new() {
        block.lend();
    }
}

/// Takes a block for the calling thread, with signals blocked: the hits of a signal handler would take
/// another one.
#[cold]
fn take() -> Option<&'static Block> {
    let table = Table::get()?;
    let mask = sys::sigprocmask(libc::SIG_BLOCK, Some(BLOCKED));
    let block = current().or_else(|| take_from(table));
    sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    block
}

/// As [`take`].
fn take_from(table: Table) -> Option<&'static Block> {
    #[cfg(feature = "mapped")]
    if pointer::is_nowhere() {
        return None;
    }
    let free = table.pop();
    let looks = free.is_none() && dead::may_be_many();
    let block = free.or_else(|| table.fresh())?;
    // SAFETY: the block is found by the thread pointer, through this thread's own slot.
    unsafe { block.task.own_every_stack() };
    block.owner.begin();
    // From here on, hits in what is called below find the block.
    if !shared::own(table, block) {
        // SAFETY: the slot is this thread's own word.
        unsafe { arch::thread_slot().write(core::ptr::from_ref(block) as usize) };
    }
    dead::look(table, looks);
    Some(block)
}

/// The destructor of the key: the thread ends. Later hits of the same thread (in other destructors, in libc's
/// own clean-up) take a block again.
unsafe extern "C" fn thread_exit(_block: *mut c_void) {
    let Some(block) = current() else { return };
    if !dead::leaves_no_call(block) {
        // A function that ends the thread is followed itself: the block stays until the thread is dead.
        return block.owner.end();
    }
    if !block.stacks.leave() {
        // The block stays until the thread is dead.
        return;
    }
    // SAFETY: the slot is this thread's own word.
    unsafe { arch::thread_slot().write(0) };
    dead::reclaim(block);
}

/// Keeps errno for the program while a handler runs outside of a signal handler (at a return, in a jump
/// probe).
#[inline]
pub(crate) fn keep_errno() {
    if let Some(block) = current_or_new()
        && !block.errno.keep()
    {
        keep_otherwise(block);
    }
}

/// As [`keep_errno`], where its address is not known, or the block is lent.
#[cold]
fn keep_otherwise(block: &Block) {
    block.close_gone();
    if block.errno.is_known() || settle::settle(block) {
        block.errno.keep_lent();
    }
}

/// Gives the program its errno while one of its own instructions runs, although the hit goes on.
#[inline]
pub(crate) fn lend_errno() {
    if let Some(block) = current() {
        block.errno.lend();
    }
}

/// Ends what [`lend_errno`] began: the program keeps the errno that the instruction has left.
#[inline]
pub(crate) fn take_errno_back() {
    if let Some(block) = current() {
        block.errno.take_back();
    }
}

/// Ends what [`keep_errno`] began, and delivers the signals that have waited. In a signal handler, `context`
/// is the interrupted context.
#[inline]
pub(crate) fn restore_errno(context: Option<UContext>) {
    if let Some(block) = current()
        && block.errno.restore()
    {
        block.deferral.end(context);
    }
}

/// Calls `visit` with the context of every thread that is not known to be dead, and cleans up after those
/// that are.
///
/// Not reentrant; called under the core's registry lock.
pub(crate) fn for_each(visit: &mut dyn FnMut(&Context<Native>)) {
    let Some(table) = Table::get() else { return };
    if copy::is_copy() {
        forked();
    }
    for block in table.used() {
        if !block.owner.is_nobody() && !dead::reclaim_if_dead(block) {
            visit(&block.context);
        }
    }
}

/// The blocks of the other threads that have one, with their numbers. Some may be dead.
pub(crate) fn others(own: &Block) -> impl Iterator<Item = (&'static Block, u32)> {
    let used = Table::get().into_iter().flat_map(Table::used);
    used.filter(|block| !core::ptr::eq(*block, own)).filter_map(|block| Some((block, block.owner.number()?)))
}

/// Whether a thread stands so, as another one executes a program.
pub(crate) fn is_standing(standing: Standing) -> bool {
    Table::get().into_iter().flat_map(Table::used).any(|block| block.executing.halt.is(standing))
}

/// In a fork's child: only the calling thread is left.
pub(crate) fn forked() {
    let Some(table) = Table::get() else { return };
    copy::forked();
    shared::forked();
    standstill::forked();
    let mine = current();
    for block in table.used().filter(|block| !block.owner.is_nobody()) {
        if mine.is_some_and(|mine| core::ptr::eq(mine, block)) {
            block.owner.forked(sys::thread_id(), copy::process());
            block.errno.end_lending();
        } else {
            dead::reclaim(block);
        }
    }
}

/// How many threads have a block now (for tests and statistics).
pub fn threads_known() -> usize {
    let used = Table::get().map(Table::used);
    used.into_iter().flatten().filter(|block| !block.owner.is_nobody()).count()
}
