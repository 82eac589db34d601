//! Registering: all or nothing (REG_12), in stages whose order the types of this module keep.

use super::handle::Probe;
use super::optimise::save_of;
use super::resolve::{Resolved, Walk};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Decoded, Method, Tail};
use crate::error::{BatchError, RegisterError, TextError};
use crate::room::{Room, leak};
use crate::state::host::{Host, Notice};
use crate::state::lock::Locked;
use crate::state::pending::{AnyProbe, Pending, PendingReturn};
use crate::state::point::{
    HAS_JPROBE, Handlers, IN_TABLE, LEAVING, Node, Point, STARTING, STEPPED, TAIL_JUMPS,
};
use crate::state::probes::Probes;
use crate::state::slots::{CHUNK_LEN, OWN, SlotChunk};
use crate::state::text;
use crate::sync::Relaxed;
use alloc::vec::Vec;
use core::ptr::NonNull;

/// The longest slot that a backend may ask for, in bytes.
const MAX_SLOT_LEN: usize = 64;

/// One probe of a batch on its way.
struct Entry<A: Arch> {
    /// Until its node is made.
    probe: Option<AnyProbe<A>>,
    resolved: Resolved,
    point: Option<NonNull<Point<A>>>,
    node: Option<NonNull<Node<A>>>,
    /// It has made its point.
    is_first: bool,
    /// It has taken the point's place for a jprobe.
    is_jprobe: bool,
    /// Its point's slot has got a breakpoint for its tail instead of a jump.
    is_readied: bool,
    is_linked: bool,
}

impl<A: Arch> Entry<A> {
    /// The point and the node, when both are made.
    fn parts<'a>(&self) -> Option<(&'a Point<A>, &'a Node<A>)> {
        let (point, node) = (self.point?, self.node?);
        // SAFETY: in the table, and the lock is held until the batch ends.
        let point = unsafe { point.as_ref() };
        // SAFETY: made by this batch, which frees it last.
        let node = unsafe { node.as_ref() };
        Some((point, node))
    }
}

impl<H: Host> Probes<H> {
    /// Registers one probe.
    ///
    /// # Errors
    /// See [`RegisterError`]; nothing has changed then.
    pub fn register(&'static self, probe: impl Into<AnyProbe<H::Arch>>) -> Result<Probe<H>, RegisterError> {
        let mut probes = self.register_all([probe.into()]).map_err(|failed| failed.error)?;
        probes.pop().ok_or(RegisterError::NoMemory)
    }

    /// Registers all of the probes or none; costs one synchronisation of the cores per stage, however many there are.
    /// The handles come in the probes' order.
    ///
    /// # Errors
    /// The first probe that failed, and why; nothing has changed then.
    pub fn register_all<P: Into<AnyProbe<H::Arch>>>(
        &'static self,
        probes: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Probe<H>>, BatchError> {
        if self.is_in_handler() {
            return Err(BatchError { index: 0, error: RegisterError::InHandler });
        }
        let mut entries = self.find_places(probes)?;
        let mut handles = Vec::new();
        let no_memory = |_| BatchError { index: 0, error: RegisterError::NoMemory };
        handles.try_reserve_exact(entries.len()).map_err(no_memory)?;
        let mut undo = Vec::new();
        undo.try_reserve_exact(entries.len()).map_err(no_memory)?;
        let mut books = self.lock();
        self.settle_locked(&mut books);
        let (mut jumps, mut lifted) = (Vec::new(), Vec::new());
        let made = self
            .prepare(&mut books, &mut entries)
            .and_then(|()| self.clear_the_way(&books, &entries, &mut lifted))
            .and_then(|()| self.make_nodes(&mut books, &mut entries))
            .and_then(|()| self.publish(&mut entries))
            .and_then(|()| {
                jumps = self.prepare_jumps(&mut books, entries.iter().filter_map(|entry| entry.point));
                self.arm_all(&books, &mut entries)
            });
        if let Err((index, error)) = made {
            // SAFETY: in the table, and the lock is held.
            let nodes_of = |point: &NonNull<Point<H::Arch>>| unsafe { point.as_ref() }.nodes();
            // Who has other probes is still there afterwards.
            lifted.retain(|point| nodes_of(point).any(|node| !node.is(STARTING)));
            self.roll_back(&mut books, &entries, &mut undo);
            // What could not be written before can hardly be written now, and keeps its breakpoint.
            let _ = self.unoptimise_points(&books, &lifted);
            let _ = self.optimise_points(&mut books, &mut lifted);
            self.clean_arrays(&mut books);
            // What the handlers own may call us when it is dropped: not under the lock.
            drop(books);
            drop(entries);
            return Err(BatchError { index, error });
        }
        for entry in &entries {
            if let Some(node) = entry.node {
                // SAFETY: published just now, and the lock is held.
                unsafe { node.as_ref() }.clear(STARTING);
                handles.push(Probe { probes: self, node });
            }
        }
        // What had a jump gets another one, if it can.
        if jumps.try_reserve(lifted.len()).is_ok() {
            jumps.append(&mut lifted);
        }
        self.optimise_new(&mut books, jumps);
        self.clean_arrays(&mut books);
        Ok(handles)
    }

    /// Looks the places up, before the lock is taken ([`Probes::resolve`] says why).
    fn find_places<P: Into<AnyProbe<H::Arch>>>(
        &self,
        probes: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Entry<H::Arch>>, BatchError> {
        let mut entries = Vec::new();
        for (index, probe) in probes.into_iter().enumerate() {
            let probe = probe.into();
            let failed = |error| BatchError { index, error };
            let wants_entry = probe.handlers.wants_entry();
            let resolved = self.resolve(&probe.place, wants_entry).map_err(failed)?;
            entries.try_reserve(1).map_err(|_| failed(RegisterError::NoMemory))?;
            entries.push(Entry {
                probe: Some(probe),
                resolved,
                point: None,
                node: None,
                is_first: false,
                is_jprobe: false,
                is_readied: false,
                is_linked: false,
            });
        }
        Ok(entries)
    }

    /// Stage 1: every entry gets its point: decoded, slot filled; new ones go into the table without probes.
    fn prepare(
        &'static self,
        books: &mut Locked<'_, H>,
        entries: &mut [Entry<H::Arch>],
    ) -> Result<(), (usize, RegisterError)> {
        let mut order = Vec::new();
        order.try_reserve_exact(entries.len()).map_err(|_| (0, RegisterError::NoMemory))?;
        order.extend(0..entries.len());
        // In the order of addresses a function's instructions are walked over once.
        order.sort_unstable_by_key(|index| (entries[*index].resolved.at, *index));
        let retired = self.points.reserve(entries.len()).map_err(|error| (0, error))?;
        self.keep_array(books, retired);
        let mut walk = Walk::new();
        let mut failed: Option<(usize, RegisterError)> = None;
        for index in order {
            if failed.as_ref().is_some_and(|(first, _)| *first < index) {
                continue;
            }
            if let Err(error) = self.prepare_one(books, &mut walk, &mut entries[index]) {
                failed = Some((index, error));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes jumps out of text where the new probes need a breakpoint, at least for a while: at their places, if the detour there
    /// does not serve them, and over them. Adds the points to `lifted`.
    fn clear_the_way(
        &self,
        lock: &Locked<'_, H>,
        entries: &[Entry<H::Arch>],
        lifted: &mut Vec<NonNull<Point<H::Arch>>>,
    ) -> Result<(), (usize, RegisterError)> {
        if self.texts.jumps() == 0 {
            return Ok(());
        }
        for (index, entry) in entries.iter().enumerate() {
            let mut add = |point: NonNull<Point<H::Arch>>| {
                lifted.try_reserve(1).map_err(|_| (index, RegisterError::NoMemory))?;
                lifted.push(point);
                Ok(())
            };
            // SAFETY: in the table, and the lock is held.
            let Some(point) = entry.point.map(|point| unsafe { point.as_ref() }) else { continue };
            if entry.probe.as_ref().is_some_and(|probe| !self.is_served(point, probe)) {
                add(NonNull::from(point))?;
            }
            for other in self.jumps_over(lock, point.place) {
                add(other)?;
            }
        }
        self.unoptimise_points(lock, lifted).map_err(|error| (0, error.into()))
    }

    fn prepare_one(
        &'static self,
        books: &mut Locked<'_, H>,
        walk: &mut Walk,
        entry: &mut Entry<H::Arch>,
    ) -> Result<(), RegisterError> {
        let at = entry.resolved.at;
        let (decoded, insn) = self.decode(books, walk, &entry.resolved)?;
        let found = self.points.find_pointer(at.as_usize(), books);
        let point = match found {
            // SAFETY: in the table, and the lock is held.
            Some(point) if self.is_same_code(unsafe { point.as_ref() }, &decoded, &insn) => point,
            Some(stale) => {
                // Its text has been replaced by other text meanwhile; nobody is on it, or its probes stay with the old.
                self.set_aside(books, stale);
                entry.is_first = true;
                self.new_point(books, at, &decoded, &insn)?
            }
            None => {
                entry.is_first = true;
                self.new_point(books, at, &decoded, &insn)?
            }
        };
        entry.point = Some(point);
        // SAFETY: it is in the table, and the lock is held.
        let point = unsafe { point.as_ref() };
        if let Some(AnyProbe { handlers: Pending::Jprobe(_), .. }) = &entry.probe {
            if point.is(HAS_JPROBE) {
                return Err(RegisterError::SecondJprobe(at));
            }
            point.set(HAS_JPROBE);
            entry.is_jprobe = true;
        }
        Ok(())
    }

    /// Whether a point that is there stands for what the text says now.
    fn is_same_code(
        &self,
        point: &Point<H::Arch>,
        decoded: &Decoded<<H::Arch as Arch>::Plan>,
        insn: &[u8; 16],
    ) -> bool {
        let breakpoint = H::Arch::BREAKPOINT.len();
        if point.plan != decoded.plan || insn.get(..breakpoint) != point.saved.get(..breakpoint) {
            return false;
        }
        // The same code may have been loaded there afresh, unnoticed: then it has no breakpoint.
        if text::is_overwritten(&self.host, point) {
            return false;
        }
        let tail = if point.is(TAIL_JUMPS) { Tail::Jump } else { Tail::Breakpoint };
        !point.has_slot() || {
            let mut image = [0; MAX_SLOT_LEN];
            let mut now = [0; MAX_SLOT_LEN];
            let own = H::Arch::SLOT_LEN - OWN;
            let len = usize::from(decoded.len_bytes);
            let filled = H::Arch::fill_slot(
                &point.plan,
                &insn[..len],
                point.place,
                point.slot,
                tail,
                &mut image[..own],
            );
            filled.is_ok()
                && self.host.read_text(point.slot, &mut now[..own]) == own
                && now[..own] == image[..own]
        }
    }

    fn new_point(
        &'static self,
        books: &mut Locked<'_, H>,
        at: CodeAddr,
        decoded: &Decoded<<H::Arch as Arch>::Plan>,
        insn: &[u8; 16],
    ) -> Result<NonNull<Point<H::Arch>>, RegisterError> {
        let slot = match decoded.method {
            Method::Simulate => CodeAddr::new(0),
            _ => self.prepare_slot(books, at, decoded, insn)?,
        };
        let mut saved = [0; 4];
        for (to, from) in saved.iter_mut().zip(insn) {
            *to = *from;
        }
        let point = Point::new(at, decoded.plan, decoded.method, decoded.len_bytes, saved, slot);
        let point = match leak(point) {
            Ok(point) => point,
            Err(error) => {
                if slot.as_usize() != 0 {
                    books.slots.put::<H::Arch>(slot);
                }
                return Err(error);
            }
        };
        // SAFETY: made just now.
        let shared = unsafe { point.as_ref() };
        shared.set(IN_TABLE);
        // SAFETY: stays valid until a grace period after it has been removed.
        unsafe { self.points.insert(point) };
        Ok(point)
    }

    /// A slot for the instruction at `at`, filled, with a breakpoint as its tail.
    pub(super) fn prepare_slot(
        &'static self,
        books: &mut Locked<'_, H>,
        at: CodeAddr,
        decoded: &Decoded<<H::Arch as Arch>::Plan>,
        insn: &[u8; 16],
    ) -> Result<CodeAddr, RegisterError> {
        let slot = match books.slots.take::<H::Arch>(at) {
            Some(slot) => slot,
            None => {
                self.add_slot_chunk(books, at)?;
                books.slots.take::<H::Arch>(at).ok_or(RegisterError::NoSlot(at))?
            }
        };
        let filled = self.fill_slot(slot, at, decoded, insn);
        if filled.is_err() {
            books.slots.put::<H::Arch>(slot);
        }
        filled.map(|()| slot)
    }

    fn fill_slot(
        &self,
        slot: CodeAddr,
        at: CodeAddr,
        decoded: &Decoded<<H::Arch as Arch>::Plan>,
        insn: &[u8; 16],
    ) -> Result<(), RegisterError> {
        const { assert!(H::Arch::SLOT_LEN.is_power_of_two()) };
        const { assert!(H::Arch::SLOT_LEN > OWN && H::Arch::SLOT_LEN <= MAX_SLOT_LEN) };
        let own = H::Arch::SLOT_LEN - OWN;
        let len = usize::from(decoded.len_bytes).min(insn.len());
        let mut image = [0; MAX_SLOT_LEN];
        H::Arch::fill_slot(&decoded.plan, &insn[..len], at, slot, Tail::Breakpoint, &mut image[..own])
            .map_err(|refusal| RegisterError::Refused { at, refusal })?;
        image[own..own + OWN].copy_from_slice(&at.as_usize().to_ne_bytes());
        // SAFETY: the slot was free: nobody executes in it.
        unsafe { self.host.write_text(slot, &image[..own + OWN]) }?;
        Ok(())
    }

    fn add_slot_chunk(&'static self, books: &mut Locked<'_, H>, at: CodeAddr) -> Result<(), RegisterError> {
        books.slots.reserve()?;
        let retired = self.slot_chunks.reserve(1)?;
        self.keep_array(books, retired);
        let reach = H::Arch::SLOT_REACH.saturating_sub(CHUNK_LEN);
        let near = (H::Arch::SLOT_REACH != usize::MAX).then_some((at, reach));
        let base = self.host.alloc_exec(CHUNK_LEN, near).ok_or(RegisterError::NoSlot(at))?;
        match SlotChunk::new(base, H::Arch::SLOT_LEN).and_then(leak) {
            Ok(chunk) => {
                books.slots.add(chunk);
                // SAFETY: stays valid until a grace period after it has been removed.
                unsafe { self.slot_chunks.insert(chunk) };
                Ok(())
            }
            Err(error) => {
                // SAFETY: nobody has been told of it.
                unsafe { self.host.free_exec(base, CHUNK_LEN) };
                Err(error)
            }
        }
    }

    /// Stage 2: every entry gets its node and, for a return probe, its pool.
    fn make_nodes(
        &'static self,
        books: &mut Locked<'_, H>,
        entries: &mut [Entry<H::Arch>],
    ) -> Result<(), (usize, RegisterError)> {
        for (index, entry) in entries.iter_mut().enumerate() {
            let failed = |error| (index, error);
            let Some(probe) = entry.probe.take() else { continue };
            let room = Room::new().map_err(failed)?;
            let flags = STARTING | probe.flags;
            let handlers = match probe.handlers.into_simple() {
                Ok(handlers) => handlers,
                Err(PendingReturn { handlers, active }) => {
                    let half = self
                        .prepare_return(books, handlers, active, save_of::<H>(probe.flags))
                        .map_err(failed)?;
                    Handlers::Return(half)
                }
            };
            books.generation = books.generation.wrapping_add(1);
            let node = room.fill(Node::new(handlers, flags, books.generation, self));
            entry.node = Some(node);
            // SAFETY: made just now.
            let shared = unsafe { node.as_ref() };
            if let Handlers::Return(half) = &shared.handlers {
                // SAFETY: what frees the node first has the pool forget it, and then waits (`retire`, `roll_back`).
                unsafe { half.belong_to(shared.known()) };
            }
        }
        Ok(())
    }

    /// Stage 3: the nodes go onto their points' lists, silent as yet, and the slots get the tails that they need.
    fn publish(&self, entries: &mut [Entry<H::Arch>]) -> Result<(), (usize, RegisterError)> {
        let mut has_changed = false;
        for (index, entry) in entries.iter_mut().enumerate() {
            if let Some((point, node)) = entry.parts()
                && node.has_post()
            {
                let failed = |error: TextError| (index, error.into());
                entry.is_readied = self.end_in_breakpoint(point).map_err(failed)?;
                has_changed |= entry.is_readied;
            }
        }
        if has_changed {
            self.host.sync_cores();
        }
        for entry in entries.iter_mut() {
            let (Some((point, node)), Some(point_pointer), Some(node_pointer)) =
                (entry.parts(), entry.point, entry.node)
            else {
                continue;
            };
            if node.has_post() {
                self.expect_post(point);
            }
            node.point.store(point_pointer.as_ptr(), Relaxed);
            // SAFETY: made by this batch; freed after it has been unlinked and a grace period has ended.
            unsafe { point.link(node_pointer) };
            self.update_detour(point);
            entry.is_linked = true;
        }
        self.let_tails_jump(entries)
    }

    /// Lets the slots of boosted points end in jumps, where they do not yet.
    fn let_tails_jump(&self, entries: &[Entry<H::Arch>]) -> Result<(), (usize, RegisterError)> {
        let is_old = |entry: &Entry<H::Arch>| {
            !entry.is_first && entry.parts().is_some_and(|(point, _)| self.has_slow_tail(point))
        };
        let has_old = entries.iter().any(is_old);
        if has_old {
            // A context may still be in such a slot with a frame, from when there was a post handler.
            self.quiesce();
            self.mark_stepped();
        }
        let mut result = Ok(());
        for (index, entry) in entries.iter().enumerate() {
            if let Some((point, _)) = entry.parts()
                && (entry.is_first || !point.is(STEPPED))
                && let Err(error) = self.let_tail_jump(point)
            {
                result = Err((index, error.into()));
                break;
            }
        }
        if has_old {
            self.clear_stepped();
        }
        result
    }

    /// Stage 4: breakpoints.
    fn arm_all(
        &self,
        lock: &Locked<'_, H>,
        entries: &mut [Entry<H::Arch>],
    ) -> Result<(), (usize, RegisterError)> {
        let mut has_changed = false;
        for (index, entry) in entries.iter().enumerate() {
            let Some(point) = entry.point else { continue };
            // SAFETY: in the table, and the lock is held.
            match self.sync_point(lock, unsafe { point.as_ref() }) {
                Ok(changed) => has_changed |= changed,
                Err(error) => return Err((index, error.into())),
            }
        }
        if has_changed {
            self.host.sync_cores();
        }
        Ok(())
    }

    /// Undoes what the stages have done. `undo` has room for every entry.
    fn roll_back(
        &'static self,
        books: &mut Locked<'_, H>,
        entries: &[Entry<H::Arch>],
        undo: &mut Vec<NonNull<Node<H::Arch>>>,
    ) {
        for entry in entries {
            let Some(node) = entry.node else { continue };
            // SAFETY: made by this batch.
            let shared = unsafe { node.as_ref() };
            shared.set(LEAVING);
            if entry.is_linked {
                undo.push(node);
            } else {
                self.forget_pool(books, shared);
                books.bury(node);
            }
        }
        for entry in entries {
            let Some(pointer) = entry.point else { continue };
            // SAFETY: in the table, and the lock is held.
            let point = unsafe { pointer.as_ref() };
            if self.sync_point(books, point).is_err() {
                self.host.notice(Notice::StuckBreakpoint(point.place));
            }
            if entry.is_jprobe {
                point.clear(HAS_JPROBE);
            }
            if entry.is_readied && !entry.is_linked {
                // Its mode is as before, so nobody has got a frame for it. If it fails, a second trap is all it costs.
                let _ = self.let_tail_jump(point);
            }
            if entry.is_first {
                // Nobody has run in its slot, unless it was armed.
                self.park_if_unused(books, pointer);
            }
        }
        self.retire(books, undo);
    }
}
