//! Watchpoints: probes that fire on data references, through the processor's debug registers.
//!
//! An optional power of a host ([`Host::watchpoints`](crate::host::Host::watchpoints)). Here are the
//! registered watchpoints and the view that handlers get; the lock-free half is `hit/watch.rs`, the locked
//! half `registry/watch.rs`.

use crate::addr::CodeAddr;
use crate::arch::{Arch, MemFault, Memory, Regs};
use crate::held::{Held, Hold};
use crate::list::Linked;
use crate::room::{Room, free};
use crate::state::counter::Counter;
use crate::state::lender::{Lender, TargetMemory};
use crate::state::point::{DISABLED, LEAVING, ORPHAN};
use crate::sync::{AcqRel, Acquire, AtomicBool, AtomicPtr, AtomicU32, Relaxed, Release};
use alloc::boxed::Box;
use core::fmt;
use core::ops::Deref;
use core::ptr::{self, NonNull};

/// The most watchpoints at the same time, on any processor.
pub const MAX_WATCHPOINTS: usize = 16;

/// Which references to watched memory fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Writes.
    Write,
    /// Reads and writes.
    ReadWrite,
}

/// The memory that a watchpoint watches, and the kind of reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchRange {
    /// The first byte.
    pub addr: usize,
    /// The length in bytes.
    pub len_bytes: usize,
    /// What fires.
    pub trigger: Trigger,
}

pub(crate) type WatchFn<A> = dyn Fn(&mut WatchHit<'_, A>) + Send + Sync;

/// A watchpoint to be registered with [`Probes::watch`](crate::Probes::watch): a handler after each reference
/// to some memory.
///
/// The handler runs where a kprobe's would, and under the same rules: it may not block, allocate in a
/// process, or register and unregister probes. References that probes' handlers make, or that the core makes
/// while it simulates an instruction, are counted as missed.
///
/// ```
/// # use probe_core::Watchpoint;
/// # fn show<A: probe_core::arch::Arch>(counter: &'static u64) -> Watchpoint<A> {
/// Watchpoint::at((&raw const *counter).addr(), 8).write().then(|hit| drop(hit.pc()))
/// # }
/// ```
pub struct Watchpoint<A: Arch> {
    pub(crate) range: WatchRange,
    pub(crate) handler: Option<Box<WatchFn<A>>>,
    pub(crate) is_disabled: bool,
}

impl<A: Arch> Watchpoint<A> {
    /// A watchpoint on `len_bytes` bytes from `addr`, for writes. The processor decides which lengths and
    /// alignments there are: 1, 2 and 4 bytes everywhere, 8 on 64-bit ones, each aligned to itself.
    pub fn at(addr: usize, len_bytes: usize) -> Self {
        let range = WatchRange { addr, len_bytes, trigger: Trigger::Write };
        Self { range, handler: None, is_disabled: false }
    }

    /// Fires on writes.
    #[must_use]
    pub fn write(mut self) -> Self {
        self.range.trigger = Trigger::Write;
        self
    }

    /// Fires on reads and writes.
    #[must_use]
    pub fn read_write(mut self) -> Self {
        self.range.trigger = Trigger::ReadWrite;
        self
    }

    /// Calls `handler` after the instruction that has made the reference.
    #[must_use]
    pub fn then<F>(mut self, handler: F) -> Self
    where
        F: Fn(&mut WatchHit<'_, A>) + Send + Sync + 'static,
    {
        self.handler = Some(Box::new(handler));
        self
    }

    /// Registers it without enabling it: it fires when [`Watch::enable`](crate::Watch::enable) has been
    /// called.
    #[must_use]
    pub fn disabled(mut self) -> Self {
        self.is_disabled = true;
        self
    }
}

impl<A: Arch> fmt::Debug for Watchpoint<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchpoint").field("range", &self.range).finish_non_exhaustive()
    }
}

/// One reference to watched memory, as a handler sees it.
pub struct WatchHit<'a, A: Arch> {
    pub(crate) regs: &'a mut A::Regs,
    pub(crate) node: &'a WatchNode<A>,
    pub(crate) lender: &'a dyn Lender,
}

impl<'a, A: Arch> WatchHit<'a, A> {
    /// The next instruction in the program's own text. The instruction that has made the reference is the one
    /// before it, or this one itself if it repeats (x86: REP).
    pub fn pc(&self) -> CodeAddr {
        self.regs.pc()
    }

    /// What is watched.
    pub fn range(&self) -> WatchRange {
        self.node.range
    }

    /// The registers after the instruction.
    pub fn regs(&self) -> &A::Regs {
        self.regs
    }

    /// The registers, to be changed. A change of pc has no effect.
    pub fn regs_mut(&mut self) -> &mut A::Regs {
        self.regs
    }

    /// The interrupted context's memory, for example to read the value that was written.
    pub fn memory(&self) -> TargetMemory<'a> {
        TargetMemory(self.lender)
    }

    /// Reads the first watched word.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub fn value(&self) -> Result<usize, MemFault> {
        let mut bytes = [0; size_of::<usize>()];
        let len = self.node.range.len_bytes.min(bytes.len());
        // At the word's low end.
        let from = if cfg!(target_endian = "big") { bytes.len() - len } else { 0 };
        if let Some(out) = bytes.get_mut(from..from + len) {
            self.memory().read(self.node.range.addr, out)?;
        }
        Ok(usize::from_ne_bytes(bytes))
    }

    /// Disables this watchpoint: its handler does not run from now on; the processor forgets it later.
    pub fn disable(&self) {
        self.node.set(DISABLED);
        self.lender.note_change();
    }
}

/// One registered watchpoint. Flags are those of a probe (the module `point`).
pub(crate) struct WatchNode<A: Arch> {
    pub(crate) range: WatchRange,
    pub(crate) handler: Option<Box<WatchFn<A>>>,
    flags: AtomicU32,
    /// The host has armed it.
    pub(crate) is_armed: AtomicBool,
    pub(crate) hits: Counter,
    pub(crate) missed: Counter,
    /// Among those that are to be freed.
    link: AtomicPtr<WatchNode<A>>,
}

impl<A: Arch> Linked for WatchNode<A> {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

/// A watchpoint's one owner, as [`OwnedNode`](crate::state::owned::OwnedNode) is a probe's: its handle, until
/// that orphans it.
#[must_use = "without an owner it is never freed"]
pub(crate) struct OwnedWatch<A: Arch>(NonNull<WatchNode<A>>);

// SAFETY: a node is shared state made for it, and its handler is Send + Sync.
unsafe impl<A: Arch> Send for OwnedWatch<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for OwnedWatch<A> {}

impl<A: Arch> OwnedWatch<A> {
    /// The owner of a new one.
    pub(crate) fn new(room: Room<WatchNode<A>>, node: WatchNode<A>) -> Self {
        Self(room.fill(node))
    }

    /// Leaves it to its register, where the next call of the registry takes it.
    pub(crate) fn orphan(&self) {
        self.set(LEAVING | ORPHAN);
    }

    /// Ends its record: what is left is memory of its own, to be freed without the lock.
    ///
    /// # Safety
    /// A grace period has ended that began when it was in no register's cell.
    pub(crate) unsafe fn end(self) -> Box<WatchNode<A>> {
        // SAFETY: it has this one owner, and nobody else reaches it.
        unsafe { free(self.0) }
    }
}

impl<A: Arch> Deref for OwnedWatch<A> {
    type Target = WatchNode<A>;

    fn deref(&self) -> &WatchNode<A> {
        // SAFETY: what frees it takes its owner first; an orphan's is not used any more.
        unsafe { self.0.as_ref() }
    }
}

impl<A: Arch> WatchNode<A> {
    pub(crate) fn new(watchpoint: Watchpoint<A>, flags: u32) -> Self {
        Self {
            range: watchpoint.range,
            handler: watchpoint.handler,
            flags: AtomicU32::new(flags),
            is_armed: AtomicBool::new(false),
            hits: Counter::new(),
            missed: Counter::new(),
            link: AtomicPtr::default(),
        }
    }

    /// Whether it has that flag, which is one.
    pub(crate) fn is(&self, flag: u32) -> bool {
        debug_assert!(flag.is_power_of_two(), "one of several is `is_any`");
        self.is_any(flag)
    }

    /// Whether it has at least one of these flags.
    pub(crate) fn is_any(&self, flags: u32) -> bool {
        self.flags.load(Relaxed) & flags != 0
    }

    pub(crate) fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Relaxed);
    }

    pub(crate) fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Relaxed);
    }
}

/// The registered watchpoints, by the number of their debug register.
pub(crate) struct Watches<A: Arch> {
    cells: [AtomicPtr<WatchNode<A>>; MAX_WATCHPOINTS],
}

impl<A: Arch> Watches<A> {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { cells: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_WATCHPOINTS] }
    }

    /// The one of register number `index`.
    #[inline(always)]
    pub(crate) fn at<'g>(&self, index: usize, _held: impl Held<'g>) -> Option<&'g WatchNode<A>> {
        // SAFETY: a node is freed after a grace period that began when it had been taken out of its cell:
        // `_held` keeps it.
        unsafe { self.cells.get(index)?.load(Acquire).as_ref() }
    }

    /// All, each with the number of its register.
    pub(crate) fn all<'g>(&'g self, held: impl Held<'g>) -> impl Iterator<Item = (usize, &'g WatchNode<A>)> {
        (0..MAX_WATCHPOINTS).filter_map(move |index| Some((index, self.at(index, held)?)))
    }

    /// The first free register, of as many as there are.
    pub(crate) fn free_register(&self, count: usize) -> Option<usize> {
        self.cells.iter().take(count).position(|cell| cell.load(Relaxed).is_null())
    }

    /// Publishes one.
    ///
    /// # Safety
    /// It is freed no sooner than a grace period after it has been [taken out](Watches::take_out).
    pub(crate) unsafe fn put(&self, index: usize, node: &OwnedWatch<A>) {
        if let Some(cell) = self.cells.get(index) {
            cell.store(node.0.as_ptr(), Release);
        }
    }

    /// Takes one out. A context that is inside may still use it.
    pub(crate) fn take_out(&self, index: usize) {
        if let Some(cell) = self.cells.get(index) {
            cell.store(ptr::null_mut(), Release);
        }
    }

    /// Takes an orphan out, and owns it.
    pub(crate) fn take_orphan(&self, index: usize, hold: &Hold) -> Option<OwnedWatch<A>> {
        self.at(index, hold).filter(|node| node.is(ORPHAN))?;
        let node = self.cells.get(index)?.swap(ptr::null_mut(), AcqRel);
        NonNull::new(node).map(OwnedWatch)
    }
}
