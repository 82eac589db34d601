//! Watchpoints, the locked half: registering, enabling, removing; and their handle.
//!
//! A watchpoint holds one of the processor's debug registers from its registration on, enabled or not, so
//! that enabling never fails for want of one.

use crate::addr::CodeAddr;
use crate::error::{EnableError, Refusal, WatchError};
use crate::held::Hold;
use crate::room::Room;
use crate::state::host::Host;
use crate::state::locked::Locked;
use crate::state::point::{DISABLED, GONE, LEAVING};
use crate::state::probes::Probes;
use crate::state::tally::Counters;
use crate::state::watch::{MAX_WATCHPOINTS, OwnedWatch, WatchNode, WatchRange, Watchpoint};
use crate::sync::Relaxed;
use core::fmt;

/// A registered watchpoint. Dropping it unregisters; from a handler, the next call of the registry does.
#[must_use = "dropping a watchpoint unregisters it; `leak` keeps it for good"]
pub struct Watch<H: Host> {
    probes: &'static Probes<H>,
    node: OwnedWatch<H::Arch>,
}

impl<H: Host> Watch<H> {
    fn node(&self) -> &WatchNode<H::Arch> {
        &self.node
    }

    /// What is watched.
    pub fn range(&self) -> WatchRange {
        self.node().range
    }

    /// Its counters: hits and missed ones; the rest is 0.
    pub fn counters(&self) -> Counters {
        let node = self.node();
        Counters { hits: node.hits.get(), missed_nested: node.missed.get(), ..Counters::default() }
    }

    /// Whether it is neither disabled nor gone. The switch does not matter.
    pub fn is_enabled(&self) -> bool {
        !self.node().is_any(DISABLED | GONE)
    }

    /// Whether its memory has gone with a module or an object (CTL_5).
    pub fn is_gone(&self) -> bool {
        self.node().is(GONE)
    }

    /// Lets it fire. From a handler, it takes effect later (REG_18).
    ///
    /// # Errors
    /// It is gone, or the host cannot watch the memory any more: then it is still disabled.
    pub fn enable(&self) -> Result<(), EnableError> {
        let node = self.node();
        if node.is(GONE) {
            return Err(EnableError::Gone(CodeAddr::new(node.range.addr)));
        }
        node.clear(DISABLED);
        let done = self.probes.apply_watches();
        if done.is_err() {
            node.set(DISABLED);
        }
        done
    }

    /// Keeps its handler from running, at once. From a handler, the processor forgets it later (REG_18).
    ///
    /// # Errors
    /// None so far: as for other probes.
    pub fn disable(&self) -> Result<(), EnableError> {
        self.node().set(DISABLED);
        self.probes.apply_watches()
    }

    /// Keeps it registered for good, and gives a reference for counters and controls.
    pub fn leak(self) -> &'static Self {
        alloc::boxed::Box::leak(alloc::boxed::Box::new(self))
    }
}

impl<H: Host> Drop for Watch<H> {
    fn drop(&mut self) {
        self.node.orphan();
        self.probes.switches.note_change();
        self.probes.settle();
    }
}

impl<H: Host> fmt::Debug for Watch<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("range", &self.range())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl<H: Host> Probes<H> {
    /// Registers a watchpoint.
    ///
    /// # Errors
    /// EOPNOTSUPP if the host has no such power, EINVAL if the processor cannot watch the range, ENOSPC if
    /// all its registers are in use, EBUSY in a handler. Each says why; nothing has changed.
    pub fn watch(&'static self, watchpoint: Watchpoint<H::Arch>) -> Result<Watch<H>, WatchError> {
        if self.is_in_handler() {
            return Err(WatchError::InHandler);
        }
        let at = watchpoint.range.addr;
        let refused = |refusal| WatchError::CannotWatch { at, refusal };
        let power = self.host.watchpoints().map_err(refused)?;
        power.check(&watchpoint.range).map_err(refused)?;
        let room = Room::new()?;
        let mut books = self.lock();
        self.settle_locked(&mut books);
        if self.switches.has_stopped() {
            return Err(WatchError::Stopped);
        }
        let count = power.count().min(MAX_WATCHPOINTS);
        let Some(index) = self.watches.free_register(count) else {
            return Err(WatchError::NoRegister(count));
        };
        let flags = if watchpoint.is_disabled { DISABLED } else { 0 };
        let node = OwnedWatch::new(room, WatchNode::new(watchpoint, flags));
        // Published before it is armed.
        // SAFETY: `settle_watches` and the lines below take it out, wait, and free it.
        unsafe { self.watches.put(index, &node) };
        if let Err(refusal) = self.sync_watch(index, &node) {
            self.watches.take_out(index);
            self.quiesce();
            // SAFETY: out of its cell since before the grace period.
            books.bury_watch(unsafe { node.end() });
            return Err(refused(refusal));
        }
        drop(books);
        Ok(Watch { probes: self, node })
    }

    /// Carries out a handle's `enable` and `disable`: now or, from a handler, later.
    fn apply_watches(&self) -> Result<(), EnableError> {
        if self.is_in_handler() {
            self.switches.note_change();
            return Ok(());
        }
        let lock = self.lock();
        self.sync_watches(lock.hold()).map_err(|(at, refusal)| EnableError::CannotWatch { at, refusal })
    }

    /// Arms and disarms as the nodes' flags and the switch ask.
    ///
    /// # Errors
    /// The first whose memory the host could not watch, and why; the rest is done.
    pub(super) fn sync_watches(&self, hold: &Hold) -> Result<(), (usize, Refusal)> {
        let mut first = Ok(());
        for (index, node) in self.watches.all(hold) {
            first = first.and(self.sync_watch(index, node).map_err(|refusal| (node.range.addr, refusal)));
        }
        first
    }

    /// Arms or disarms the watchpoint of register number `index`.
    fn sync_watch(&self, index: usize, node: &WatchNode<H::Arch>) -> Result<(), Refusal> {
        let is_wanted = self.is_on() && !node.is_any(DISABLED | GONE | LEAVING);
        if is_wanted == node.is_armed.load(Relaxed) {
            return Ok(());
        }
        let power = self.host.watchpoints()?;
        if is_wanted {
            power.arm(index, &node.range)?;
        } else {
            power.disarm(index);
        }
        node.is_armed.store(is_wanted, Relaxed);
        Ok(())
    }

    /// Carries out the requests of handlers, and takes out the watchpoints whose handle is gone, to be freed
    /// when the lock is released.
    pub(super) fn settle_watches(&self, lock: &mut Locked<'_, H>) {
        // Enabling a watchpoint tries again what the host cannot do now.
        let _ = self.sync_watches(lock.hold());
        let mut orphans = [const { None }; MAX_WATCHPOINTS];
        for (index, orphan) in orphans.iter_mut().enumerate() {
            *orphan = self.watches.take_orphan(index, lock.hold());
            if let Some(node) = orphan {
                // It may have become one only now, armed.
                let _ = self.sync_watch(index, node);
            }
        }
        if orphans.iter().any(Option::is_some) {
            self.quiesce();
        }
        for orphan in orphans.into_iter().flatten() {
            // SAFETY: out of its cell since before the grace period.
            lock.bury_watch(unsafe { orphan.end() });
        }
    }

    /// Marks the watchpoints on memory that goes away; the processor then forgets them.
    pub(super) fn watched_memory_going(&self, hold: &Hold, start: CodeAddr, end: CodeAddr) {
        let gone = start.as_usize()..end.as_usize();
        self.watches
            .all(hold)
            .filter(|(_, node)| gone.contains(&node.range.addr))
            .for_each(|(_, node)| node.set(GONE));
        // Nothing is armed by it, so nothing fails.
        let _ = self.sync_watches(hold);
    }
}
