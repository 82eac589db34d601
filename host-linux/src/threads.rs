//! What every thread has: its context, its task, its alternate stack.
//!
//! A thread's block comes from one mapping that is reserved at start, and is found through one word of thread-local
//! storage in the initial-exec model. So a thread's very first hit can take a block in the signal handler: no lock, no
//! allocation, no lazy thread-local storage.
//!
//! The destructor of a pthread key gives a thread's block back. A thread may end without it, or take a block again for hits
//! after it (in libc's own clean-up). Such a block comes back once the kernel says that its thread is gone: `for_each` asks,
//! and so does a thread that takes a block while half of them may be left over.

mod altstack;
mod number;
mod shared;

pub use self::altstack::ALTSTACK_LEN;
pub(crate) use self::altstack::{
    ensure_altstack, give_up_altstack, program_stack, set_program_stack, show_program_stack,
};
pub(crate) use self::shared::{hold, share};

use self::altstack::Stacks;
use self::number::Word;
use self::shared::SharedWord;

use crate::arch::{self, Native, UContext};
use crate::signals::{self, BLOCKED};
use crate::sys::{self, SignalSet};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use probe_core::{Context, Task};
use std::sync::OnceLock;

/// How many threads can be inside probes' reach at the same time.
const BLOCKS: usize = if cfg!(target_pointer_width = "64") { 64 << 10 } else { 4 << 10 };

/// The owner of a block that has none.
const NOBODY: u32 = 0;

/// One thread's state.
#[repr(C, align(128))]
pub(crate) struct Block {
    /// The core's state of this thread as a context.
    pub(crate) context: Context<Native>,
    /// The core's state of this thread as a task.
    pub(crate) task: Task<Native>,
    /// The signal frame of the innermost handler of ours that runs in this thread, or null.
    pub(crate) ucontext: AtomicPtr<c_void>,
    /// The thread's errno, or null before it is known.
    errno: AtomicPtr<c_int>,
    /// How often [`keep_errno`] was called without [`restore_errno`], and what errno was at the first.
    errno_depth: AtomicU32,
    kept_errno: AtomicI32,
    /// Whether a signal waits for the end of a hit by a jump, and the signal mask that comes back then.
    is_deferring: AtomicBool,
    kept_mask: AtomicU64,
    /// The signal that comes once more on another stack although it is blocked, or 0, and the signal mask of then.
    waits_for: AtomicI32,
    wait_mask: AtomicU64,
    /// The last fault that ended a fault-free copy: code and address, for a faithful signal.
    pub(crate) fault_signal: AtomicI32,
    pub(crate) fault_code: AtomicI32,
    pub(crate) fault_addr: AtomicUsize,
    /// The thread is ending, but calls that it follows may still return.
    is_ending: AtomicBool,
    /// The thread, [`NOBODY`], [`STARTING`] or [`GONE`].
    owner: AtomicU32,
    /// The word that leads to the block, where it leads to others, too.
    shared: SharedWord,
    /// Where libc keeps the owner's number ([`Word`]).
    number_at: AtomicUsize,
    /// 1 + the index of the next free block, while this one is free.
    next_free: AtomicU32,
    /// Our alternate stack, which stays with the block, and the program's.
    stacks: Stacks,
    /// Whether the alternate stack is just being made: what that calls may be probed itself.
    is_preparing: AtomicBool,
    /// The embedding program's ([`words`]).
    words: Words,
}

/// An owner that is known to be dead; the block waits for [`for_each`] to be cleaned.
const GONE: u32 = u32::MAX;

/// A living owner that has not written its number yet.
const STARTING: u32 = u32::MAX - 1;

/// The owner is dead and somebody is cleaning up.
const CLEANING: u32 = u32::MAX - 2;

/// The table of blocks, null before [`start`].
static TABLE: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());

/// The table, once it is there.
#[derive(Clone, Copy)]
struct Table(*mut Block);

impl Table {
    fn get() -> Option<Self> {
        let table = TABLE.load(Ordering::Acquire);
        (!table.is_null()).then_some(Self(table))
    }

    /// Block number `index`, which is below [`BLOCKS`].
    fn block(self, index: u32) -> &'static Block {
        debug_assert!((index as usize) < BLOCKS);
        // SAFETY: within the mapping, which stays for ever. A block that was never used is all zero: that is a valid
        // value of atomics and cells, which is all there is in a block, and nobody's.
        unsafe { &*self.0.wrapping_add(index as usize) }
    }

    /// Those that were ever taken.
    fn used(self) -> impl Iterator<Item = &'static Block> {
        (0..USED.load(Ordering::Acquire)).map(move |index| self.block(index))
    }
}
/// How many blocks of the table were ever taken.
static USED: AtomicU32 = AtomicU32::new(0);
/// With how many of them taken at the same time somebody looks which ones are dead threads'.
static LOOK_AT: AtomicU32 = AtomicU32::new(FEW);
/// So many blocks may stay with dead threads, however few are living.
const FEW: u32 = 16;
/// 1 + the index of the first free block, and above it a tag that changes with every exchange.
static FREE: AtomicU64 = AtomicU64::new(0);
/// The pthread key whose destructor gives the block back, or -1.
static KEY: AtomicI32 = AtomicI32::new(-1);
/// The process whose threads the blocks belong to.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// A word that is 1, and 0 in a fork's child; null where there is none.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// What to call when threads end.
static EXITS: OnceLock<Exits> = OnceLock::new();

/// What to call when threads end.
#[derive(Clone, Copy)]
pub(crate) struct Exits {
    /// With the task of a thread that has ended.
    pub(crate) ended: fn(&Task<Native>),
    /// With the task of a thread that is about to end and its stack pointer; `true`: no call is left that may return.
    pub(crate) ending: fn(&Task<Native>, usize) -> bool,
}

/// Reserves the table.
///
/// # Errors
/// The errno: no address space.
pub(crate) fn start(exits: Exits) -> Result<(), c_int> {
    let table = sys::map(0, BLOCKS * size_of::<Block>(), libc::PROT_READ | libc::PROT_WRITE)?;
    EXITS.get_or_init(|| exits);
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    mark();
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor is a function of the right type that lives for ever.
    let result = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exit)) };
    // glibc keeps the first 32 keys' values in the thread itself; setting any other may allocate.
    if result == 0 && key < 32 {
        KEY.store(key as i32, Ordering::Relaxed);
    }
    TABLE.store(table as *mut Block, Ordering::Release);
    Ok(())
}

/// Finds out how threads are numbered without the kernel. Our handlers are in place.
pub(crate) fn learn_numbers() {
    number::start();
}

/// Called with a thread's [`words`] when it has ended.
static ON_END: OnceLock<fn(&Words)> = OnceLock::new();

/// What a thread keeps for whoever embeds this crate.
pub type Words = [AtomicUsize; 4];

/// Words of the calling thread's own, for whoever embeds this crate: zero in a new thread, kept in a fork's child.
/// `None` where there is no room for another thread. Fit for handlers, where thread-local variables are not.
#[inline]
pub fn words() -> Option<&'static Words> {
    current_or_new().map(|block| &block.words)
}

/// Calls `hook` with the [`words`] of every thread that ends: in that thread, or in another one that has found it dead.
/// Only the first hook counts.
pub fn on_thread_end(hook: fn(&Words)) {
    let _ = ON_END.set(hook);
}

/// The calling thread's block, if it has one.
#[inline]
pub(crate) fn current() -> Option<&'static Block> {
    // SAFETY: the slot is this thread's own word.
    let block = unsafe { arch::thread_slot().read() } as *const Block;
    // SAFETY: only `take` stores into it: null or a block of the table, which is never unmapped.
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
    if block.errno().is_none() {
        block.settle();
    }
    block.stacks.put_early();
}

impl Block {
    /// The thread's errno.
    #[inline]
    pub(crate) fn errno(&self) -> Option<&AtomicI32> {
        let errno = self.errno.load(Ordering::Relaxed);
        // SAFETY: null, or the errno of the thread that owns the block, which is the one that runs this.
        (!errno.is_null()).then(|| unsafe { AtomicI32::from_ptr(errno) })
    }

    /// The same, asked for at the first hit, when the thread's end is noted, too. This calls functions of libc, which may be
    /// probed: it has to be on a stack where hits nest. `None` in the hits of these calls.
    #[cold]
    fn settle(&self) -> Option<&AtomicI32> {
        if self.is_preparing.swap(true, Ordering::Relaxed) {
            return None;
        }
        let errno = sys::errno_location();
        let key = KEY.load(Ordering::Relaxed);
        // What is shared has its value already, if its first owner is libc's.
        if key >= 0 && !self.shared.is_shared() {
            // SAFETY: the key exists. Keys below 32 are plain stores into the thread's own structure in glibc, all keys in
            // musl: fit for a signal handler.
            unsafe {
                libc::pthread_setspecific(key as libc::pthread_key_t, core::ptr::from_ref(self).cast())
            };
        }
        self.own();
        self.errno.store(errno, Ordering::Relaxed);
        self.is_preparing.store(false, Ordering::Relaxed);
        self.errno()
    }

    /// Writes down which thread's the block is.
    fn own(&self) {
        let Some(table) = Table::get() else { return };
        if self.shared.is_shared() {
            return;
        }
        let owned =
            |thread: u32| table.used().filter(move |block| block.owner.load(Ordering::Acquire) == thread);
        let (mut thread, mut word) = number::of_this_thread();
        // Another's, too, where this is no thread of libc's making: a child that shares the memory.
        if word.0 != 0 && owned(thread).any(|other| other.number_at.load(Ordering::Relaxed) == word.0) {
            // The kernel tells them apart.
            let told = sys::thread_id();
            (thread, word) = (told, if told == thread { word } else { Word(0) });
        }
        // A block whose owner has this number was left by a thread that is dead.
        for other in owned(thread) {
            let _ = other.owner.compare_exchange(thread, GONE, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.number_at.store(word.0, Ordering::Relaxed);
        self.owner.store(thread, Ordering::Release);
    }

    /// Whether a hit is being handled: in a signal handler of ours, or between [`keep_errno`] and [`restore_errno`].
    pub(crate) fn is_busy(&self) -> bool {
        !self.ucontext.load(Ordering::Relaxed).is_null() || self.errno_depth.load(Ordering::Relaxed) != 0
    }

    /// Keeps the signal mask until the hit is over.
    pub(crate) fn keep_mask(&self, mask: SignalSet) {
        self.kept_mask.store(mask.bits(), Ordering::Relaxed);
        self.is_deferring.store(true, Ordering::Relaxed);
    }

    /// Whether [`Block::keep_wait`] keeps one.
    pub(crate) fn has_wait(&self) -> bool {
        self.waits_for.load(Ordering::Relaxed) != 0
    }

    /// Keeps the mask that a wait had let `signal` through, until that comes again.
    pub(crate) fn keep_wait(&self, signal: c_int, mask: SignalSet) {
        self.wait_mask.store(mask.bits(), Ordering::Relaxed);
        self.waits_for.store(signal, Ordering::Relaxed);
    }

    /// What [`Block::keep_wait`] has kept for `signal`.
    pub(crate) fn take_wait(&self, signal: c_int) -> Option<SignalSet> {
        let is_kept = self.waits_for.load(Ordering::Relaxed) == signal;
        is_kept.then(|| {
            self.waits_for.store(0, Ordering::Relaxed);
            SignalSet::from_bits(self.wait_mask.load(Ordering::Relaxed))
        })
    }

    /// What [`Block::keep_mask`] has kept, for whoever sees to it from now on.
    #[inline]
    pub(crate) fn take_kept_mask(&self) -> Option<SignalSet> {
        if !self.is_deferring.load(Ordering::Relaxed) {
            return None;
        }
        self.is_deferring.store(false, Ordering::Relaxed);
        Some(SignalSet::from_bits(self.kept_mask.load(Ordering::Relaxed)))
    }

    fn index(&self) -> u32 {
        let table = TABLE.load(Ordering::Relaxed) as usize;
        ((core::ptr::from_ref(self) as usize - table) / size_of::<Self>()) as u32
    }

    /// Makes the block nobody's.
    fn free(&self) {
        self.owner.store(NOBODY, Ordering::Release);
        let mut head = FREE.load(Ordering::Relaxed);
        loop {
            self.next_free.store(head as u32, Ordering::Relaxed);
            let new = ((head >> 32) + 1) << 32 | u64::from(self.index() + 1);
            match FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Cleans and frees the block if its owner is dead; whether it is.
    fn reclaim_if_dead(&self) -> bool {
        let thread = self.owner.load(Ordering::Acquire);
        let is_dead = match thread {
            NOBODY | STARTING | CLEANING => return false,
            GONE => true,
            thread => {
                let word = Word(self.number_at.load(Ordering::Relaxed));
                !word.lives(thread, PROCESS.load(Ordering::Relaxed))
            }
        };
        // Whoever makes the change cleans up.
        if is_dead
            && self.owner.compare_exchange(thread, CLEANING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.reclaim();
        }
        is_dead
    }

    /// Cleans the block of a dead thread and frees it.
    fn reclaim(&self) {
        if let Some(exits) = EXITS.get() {
            (exits.ended)(&self.task);
        }
        // SAFETY: the owner is dead or about to be and has no active hit, so nobody else uses the context.
        unsafe { self.context.reset() };
        if let Some(hook) = ON_END.get() {
            hook(&self.words);
        }
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.ucontext.store(core::ptr::null_mut(), Ordering::Relaxed);
        self.errno.store(core::ptr::null_mut(), Ordering::Relaxed);
        self.errno_depth.store(0, Ordering::Relaxed);
        self.is_preparing.store(false, Ordering::Relaxed);
        self.is_deferring.store(false, Ordering::Relaxed);
        self.waits_for.store(0, Ordering::Relaxed);
        self.is_ending.store(false, Ordering::Relaxed);
        self.shared.reset();
        self.free();
    }
}

/// Takes a block for the calling thread. No signal comes between: its handler's hits would take another one.
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
    let free = pop(table);
    let looks = free.is_none() && USED.load(Ordering::Relaxed) >= LOOK_AT.load(Ordering::Relaxed);
    let block = free.or_else(|| fresh(table))?;
    // SAFETY: the block is found by the thread pointer, through this thread's own slot.
    unsafe { block.task.own_every_stack() };
    block.owner.store(STARTING, Ordering::Release);
    // From here on, hits in what is called below find the block.
    if !shared::own(table, block) {
        // SAFETY: the slot is this thread's own word.
        unsafe { arch::thread_slot().write(core::ptr::from_ref(block) as usize) };
    }
    let mut living = 0;
    for other in table.used() {
        // Those that were ending may have ended meanwhile.
        if looks || other.is_ending.load(Ordering::Acquire) {
            living += u32::from(!other.reclaim_if_dead());
        }
    }
    if looks {
        LOOK_AT.store(look_at(living), Ordering::Relaxed);
    }
    Some(block)
}

/// With how many blocks taken to look next, when `living` of them are living threads': before there is none left, and else so
/// late that looking costs a new thread a question to the kernel or two, on average.
fn look_at(living: u32) -> u32 {
    living + living.max(FEW).min((BLOCKS as u32).saturating_sub(living) / 2)
}

/// Takes a block that was given back.
fn pop(table: Table) -> Option<&'static Block> {
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        let index = (head as u32).checked_sub(1)?;
        let block = table.block(index);
        let next = block.next_free.load(Ordering::Relaxed);
        let new = ((head >> 32) + 1) << 32 | u64::from(next);
        match FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(block),
            Err(now) => head = now,
        }
    }
}

/// Takes a block that was never used. It is all zero, as [`Context::new`] and [`Task::new`] are.
fn fresh(table: Table) -> Option<&'static Block> {
    let next = |used: u32| ((used as usize) < BLOCKS).then_some(used + 1);
    let index = USED.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok()?;
    Some(table.block(index))
}

/// The destructor of the key: the thread ends. Later hits of the same thread (in other destructors, in libc's own
/// clean-up) take a block again.
unsafe extern "C" fn thread_exit(_block: *mut c_void) {
    let Some(block) = current() else { return };
    let here = core::ptr::from_ref(&block) as usize;
    if !EXITS.get().is_some_and(|exits| (exits.ending)(&block.task, here)) {
        // A function that ends the thread is followed itself: the block stays until the thread is dead.
        block.is_ending.store(true, Ordering::Release);
        return;
    }
    if !block.stacks.leave() {
        // The block stays until the thread is dead.
        return;
    }
    // SAFETY: the slot is this thread's own word.
    unsafe { arch::thread_slot().write(0) };
    block.reclaim();
}

/// Keeps errno for the program while a handler runs outside of a signal handler (at a return, in a jump probe).
#[inline]
pub(crate) fn keep_errno() {
    if let Some(block) = current_or_new()
        && let Some(errno) = block.errno().or_else(|| block.settle())
    {
        let depth = block.errno_depth.load(Ordering::Relaxed);
        if depth == 0 {
            block.kept_errno.store(errno.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        block.errno_depth.store(depth + 1, Ordering::Relaxed);
    }
}

/// Gives the program its errno while an instruction of its own runs, although the hit goes on.
#[inline]
pub(crate) fn lend_errno() {
    if let Some(block) = current()
        && let Some(errno) = block.errno()
    {
        errno.store(block.kept_errno.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Ends what [`lend_errno`] began: what the instruction has made of errno is the program's.
#[inline]
pub(crate) fn take_errno_back() {
    if let Some(block) = current()
        && let Some(errno) = block.errno()
    {
        block.kept_errno.store(errno.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Ends what [`keep_errno`] began, and lets signals come that have waited for it. In a signal handler, `context` is what
/// it has interrupted.
#[inline]
pub(crate) fn restore_errno(context: Option<UContext>) {
    if let Some(block) = current()
        && let Some(errno) = block.errno()
    {
        let depth = block.errno_depth.load(Ordering::Relaxed).saturating_sub(1);
        block.errno_depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            errno.store(block.kept_errno.load(Ordering::Relaxed), Ordering::Relaxed);
            if let Some(mask) = block.take_kept_mask() {
                signals::resume(mask, context);
            }
        }
    }
}

/// Calls `visit` with the context of every thread that is not known to be dead, and cleans up after those that are.
///
/// Not reentrant; called under the core's registry lock.
pub(crate) fn for_each(visit: &mut dyn FnMut(&Context<Native>)) {
    let Some(table) = Table::get() else { return };
    if is_copy() {
        forked();
    }
    for block in table.used() {
        let is_nobodys = block.owner.load(Ordering::Acquire) == NOBODY;
        if !is_nobodys && !block.reclaim_if_dead() {
            visit(&block.context);
        }
    }
}

/// Whether this is a fork's child that nobody has told of it. One that shares the memory (`CLONE_VM`) is none: the threads in
/// the table are alive.
fn is_copy() -> bool {
    let mark = MARK.load(Ordering::Relaxed);
    // SAFETY: null, or the page of `mark`, which stays.
    let is_wiped = unsafe { mark.as_ref() }.map(|mark| mark.load(Ordering::Relaxed) == 0);
    is_wiped.unwrap_or_else(|| PROCESS.load(Ordering::Relaxed) != sys::process_id())
}

/// Makes the word that a fork wipes. An emulator takes the advice without following it, as it takes any.
fn mark() {
    const NO_ADVICE: c_int = 0x7fff;
    let len = sys::page_len();
    let Ok(page) = sys::map(0, len, libc::PROT_READ | libc::PROT_WRITE) else { return };
    // SAFETY: just mapped, all zero, nobody else's.
    let advise = |advice| unsafe { libc::madvise(page as *mut c_void, len, advice) } == 0;
    if !advise(libc::MADV_WIPEONFORK) || advise(NO_ADVICE) {
        // SAFETY: nobody knows it.
        return unsafe { sys::unmap(page, len) };
    }
    let mark = page as *mut AtomicU32;
    // SAFETY: mapped and zero, a valid word, never unmapped.
    unsafe { (*mark).store(1, Ordering::Relaxed) };
    MARK.store(mark, Ordering::Relaxed);
}

/// In a fork's child: only the calling thread is left.
pub(crate) fn forked() {
    let Some(table) = Table::get() else { return };
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    // SAFETY: null, or the page of `mark`, which stays.
    if let Some(mark) = unsafe { MARK.load(Ordering::Relaxed).as_ref() } {
        mark.store(1, Ordering::Relaxed);
    }
    shared::forked();
    let mine = current();
    for block in table.used().filter(|block| block.owner.load(Ordering::Relaxed) != NOBODY) {
        if mine.is_some_and(|mine| core::ptr::eq(mine, block)) {
            let thread = sys::thread_id();
            // A child that was made behind libc's back has its parent's number there.
            if !Word(block.number_at.load(Ordering::Relaxed)).lives(thread, sys::process_id()) {
                block.number_at.store(0, Ordering::Relaxed);
            }
            block.owner.store(thread, Ordering::Release);
        } else {
            block.reclaim();
        }
    }
}

/// How many threads have a block now (for tests and statistics).
pub fn threads_known() -> usize {
    let used = Table::get().map(|table| table.used());
    used.into_iter().flatten().filter(|block| block.owner.load(Ordering::Relaxed) != NOBODY).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_never_used_is_as_new() {
        fn is_zero<T>(value: &T) -> bool {
            let words = core::ptr::from_ref(value).cast::<usize>();
            // Uninitialised cells are skipped: all that is initialised lies before and between them as whole words.
            // SAFETY: volatile reads of words inside the value; what is uninitialised reads as anything, and is only
            // compared in the mapping below, never here.
            (0..size_of::<T>() / size_of::<usize>())
                .all(|i| unsafe { words.wrapping_add(i).read_volatile() } == 0)
        }
        static CONTEXT: Context<Native> = Context::new();
        static TASK: Task<Native> = Task::new();
        assert!(is_zero(&CONTEXT) && is_zero(&TASK));
    }

    #[test]
    fn dead_threads_blocks_are_looked_for_before_there_are_none() {
        assert_eq!(look_at(1), 1 + FEW);
        assert_eq!(look_at(100), 200);
        let blocks = BLOCKS as u32;
        assert!((1..blocks - 1).all(|living| (living + 1..blocks).contains(&look_at(living))));
    }
}
