//! Removing: disarmed, taken off, freed after a grace period; and text that goes away by itself.

use super::handle::{Kept, Probe};
use crate::addr::CodeAddr;
use crate::error::{RemoveError, TextError};
use crate::held::{Hold, Lent};
use crate::list::List;
use crate::room::free;
use crate::state::books::Books;
use crate::state::host::{Host, Notice};
use crate::state::locked::{Locked, OpenBooks};
use crate::state::owned::OwnedNode;
use crate::state::point::{
    GONE, HAS_JPROBE, Handlers, IN_TABLE, LEAVING, LINGERS, Node, ORPHAN, PARKED, POINT_GONE, Point, STEPPED,
};
use crate::state::probes::Probes;
use crate::state::slots::{CHUNK_LEN, SlotChunk};
use crate::state::text::writing::Writing;
use crate::sync::Relaxed;
use crate::table::RetiredArray;
use alloc::vec::Vec;
use core::ptr::NonNull;

impl<H: Host> Probes<H> {
    /// Removes all of the probes, with one wait for all of them (REG_13). If there is no memory for the list,
    /// they are removed one at a time.
    ///
    /// # Errors
    /// The probes that could not be removed, and why: the call came from a handler, or their text cannot be
    /// written. The rest is gone. A probe that there is no memory to return is removed by the next call, as a
    /// dropped handle is.
    pub fn unregister_all(
        &'static self,
        probes: impl IntoIterator<Item = Probe<H>>,
    ) -> Result<(), Vec<Kept<H>>> {
        let mut kept = Vec::new();
        let mut has_failed = false;
        let mut keep = |node, error| {
            has_failed = true;
            if kept.try_reserve(1).is_ok() {
                kept.push(Kept { probe: Probe::new(self, node), error });
            } else {
                self.orphan(node);
            }
        };
        let mut nodes = Vec::new();
        for probe in probes {
            let node = Some(probe.give_up());
            if nodes.try_reserve(1).is_ok() {
                nodes.push(node);
            } else {
                self.remove_all(&mut [node], &mut keep);
            }
        }
        self.remove_all(&mut nodes, &mut keep);
        if has_failed { Err(kept) } else { Ok(()) }
    }

    /// Leaves a node whose handle is given up to the next call of the registry.
    pub(super) fn orphan(&self, node: OwnedNode<H::Arch>) {
        node.orphan();
        self.switches.note_change();
    }

    /// Removes nodes whose handles are given up. `kept` gets those that fail, which stay as they were.
    pub(super) fn remove_all(
        &self,
        nodes: &mut [Option<OwnedNode<H::Arch>>],
        kept: &mut dyn FnMut(OwnedNode<H::Arch>, RemoveError),
    ) {
        if self.is_in_handler() {
            nodes.iter_mut().filter_map(Option::take).for_each(|node| kept(node, RemoveError::InHandler));
            return;
        }
        let mut books = self.lock();
        self.settle_locked(&mut books);
        nodes.iter().flatten().for_each(|node| node.leave());
        self.unoptimise_leaving(books.hold(), nodes);
        let mut writing = Some(Writing::begin(&self.host, books.hold()));
        for node in nodes.iter_mut() {
            if let Some(Err(error)) = node.as_ref().map(|node| self.disarm_leaving(books.hold(), node))
                && let Some(node) = node.take()
            {
                // The caller's code runs the program's functions.
                drop(writing.take());
                // Its breakpoint keeps it: only disarmed nodes are retired below.
                node.clear(LEAVING);
                kept(node, RemoveError::Text(error));
            }
        }
        drop(writing);
        self.retire(&mut books, nodes);
    }

    /// Takes the breakpoint out of text if no probe is left for it when the node is gone.
    fn disarm_leaving(&self, hold: &Hold, node: &Node<H::Arch>) -> Result<(), TextError> {
        let point = node.point(hold).get();
        if !point.is(POINT_GONE)
            && let Err(error) = self.sync_point(hold, point)
        {
            self.host.notice(Notice::StuckBreakpoint(point.place));
            return Err(error);
        }
        Ok(())
    }

    /// Takes the jumps out of text that have no probe left when the nodes are gone, all of them at once.
    fn unoptimise_leaving(&self, hold: &Hold, nodes: &[Option<OwnedNode<H::Arch>>]) {
        let mut points = Vec::new();
        for node in nodes.iter().flatten() {
            let point = node.point(hold).get();
            if point.text.has_jump() && !self.is_wanted(point) && points.try_reserve(1).is_ok() {
                points.push(point);
            }
        }
        // A failure here comes again when its breakpoint is removed, and is reported then.
        let _ = self.unoptimise_points(hold, &points);
    }

    /// Takes the nodes, which are leaving and disarmed, off their points, and frees them and everything that
    /// is no longer in use.
    pub(super) fn retire(&self, lock: &mut Locked<'_, H>, nodes: &mut [Option<OwnedNode<H::Arch>>]) {
        let mut books = lock.open();
        nodes.iter().flatten().for_each(|node| self.take_off(&mut books, node));
        self.free_leaving(lock, nodes);
    }

    /// Takes a node off its point. It is disarmed.
    pub(super) fn take_off(&self, books: &mut OpenBooks<'_, H>, node: &Node<H::Arch>) {
        debug_assert!(node.is(LEAVING), "its handlers may run still");
        let point = node.point(books.hold);
        point.unlink(books.hold, node);
        self.update_detour(books.hold, &point);
        if matches!(node.handlers, Handlers::Jprobe(_)) {
            point.clear(HAS_JPROBE);
        }
        self.update_mode(&point);
        books.forget_pool(node);
        books.park_if_unused(point);
    }

    /// Frees the nodes, which are off their points, and everything that is no longer in use.
    pub(super) fn free_leaving(&self, lock: &mut Locked<'_, H>, nodes: &mut [Option<OwnedNode<H::Arch>>]) {
        self.quiesce();
        self.mark_stepped(lock.hold());
        let mut books = lock.open();
        for node in nodes.iter().flatten() {
            let point = node.point(books.hold);
            // Where no probe is left, the next one sees to the tail.
            if point.is_probed() && point.is(IN_TABLE) && !point.is(STEPPED) {
                // A failure only costs a second trap.
                let _ = self.let_tail_jump(&point);
            }
        }
        for node in nodes.iter_mut().filter_map(Option::take) {
            // SAFETY: off its point since before the grace period, and its pool has forgotten it.
            books.bury(unsafe { node.end() });
        }
        // SAFETY: a grace period has passed since any was retired.
        unsafe { lock.arrays.free() };
        self.clean_up(lock);
        self.clear_stepped(lock.hold());
    }

    /// Marks the points that stand in some context's frame.
    pub(super) fn mark_stepped(&self, hold: &Hold) {
        self.host.for_each_context(&mut |context| context.for_each_active(hold, |point| point.set(STEPPED)));
    }

    /// Removes the marks. One of a frame that has been left meanwhile stays, and only delays a later freeing.
    pub(super) fn clear_stepped(&self, hold: &Hold) {
        self.host
            .for_each_context(&mut |context| context.for_each_active(hold, |point| point.clear(STEPPED)));
    }

    /// Takes unused parked points off the table, and their slots back. Call it after a grace period at whose
    /// beginning they had no probe, and after [`Probes::mark_stepped`].
    ///
    /// A point whose slot may hold a context without a frame stays in the table: it is found from there at
    /// the slot's end, and again by the next probe on its place.
    fn take_parked(&self, books: &mut OpenBooks<'_, H>) -> List<Point<H::Arch>> {
        let mut taken = List::new();
        let mut parked = core::mem::replace(&mut books.parked, List::new());
        while let Some(point) = parked.pop(books.hold) {
            if (point.is_probed() || point.is_any(LINGERS | STEPPED)) && books.keeps(point) {
                continue;
            }
            self.places.take_off(&point, books.hold);
            if point.has_slot() {
                self.slots.put::<H::Arch>(point.slot, books.hold);
            }
            // SAFETY: in no list any more; `clean_up` frees what it takes out.
            unsafe { taken.push(point.pointer()) };
        }
        taken
    }

    // ---- memory
    // -------------------------------------------------------------------------------------------------

    /// Frees the pools of probes that have gone whose last call has returned, if there are any (RET_6).
    pub(super) fn free_returned_pools(&self, books: &mut Locked<'_, H>) {
        let open = books.open();
        let is_any = open.pools.iter().any(|pool| pool.is_over());
        if is_any || (open.has_left_stubs && self.has_unused_stubs(&open)) {
            self.quiesce();
            self.mark_stepped(books.hold());
            self.clean_up(books);
            self.clear_stepped(books.hold());
        }
    }

    /// Frees everything that is no longer in use: points, pools without calls, chunks without slots or stubs.
    /// It waits a second time if there is any, as other contexts may still be looking at it.
    fn clean_up(&self, lock: &mut Locked<'_, H>) {
        let mut books = lock.open();
        let mut points = self.take_parked(&mut books);
        let mut pools = List::new();
        let mut retired = core::mem::replace(&mut books.pools, List::new());
        while let Some(pool) = retired.pop(books.hold) {
            let list = if pool.is_over() {
                books.has_left_stubs |= pool.given_up() != 0;
                self.detach_stubs(books.hold, &pool);
                &mut pools
            } else {
                &mut books.pools
            };
            // SAFETY: in no list since it was taken out of this one; freed below, or by a later call.
            unsafe { list.push(pool.pointer()) };
        }
        let stub_chunks = self.take_empty_stub_chunks(&mut books);
        let slot_chunks = self.take_empty_slot_chunks(books.hold);
        books.keep_array(self.places.retire_if_empty());
        books.keep_array(self.stubs.retire_if_empty());
        books.keep_array(self.slots.retire_if_empty());
        let has_chunks = !stub_chunks.is_empty() || !slot_chunks.is_empty();
        if points.is_empty() && pools.is_empty() && books.arrays.is_empty() && !has_chunks {
            return;
        }
        self.quiesce();
        // SAFETY: a grace period has passed since any was retired.
        unsafe { lock.arrays.free() };
        while let Some(point) = points.pop(lock.hold()) {
            debug_assert!(
                point.head.load(Relaxed).is_null() && !point.is(IN_TABLE),
                "a point is freed in use"
            );
            let point = point.pointer();
            // SAFETY: off the table and in no frame since before the grace period; no node is left that leads
            // to it.
            drop(unsafe { free(point) });
        }
        while let Some(pool) = pools.pop(lock.hold()) {
            self.settle_stubs(lock.hold(), &pool);
            // SAFETY: its probe had gone and no call was in flight before the grace period, and no stub leads
            // to it.
            drop(unsafe { free(pool.pointer()) });
        }
        for chunk in stub_chunks {
            // SAFETY: off the table since before the grace period.
            let chunk = unsafe { free(chunk) };
            self.host.stubs_removed(chunk.base);
            // SAFETY: no stub of it was in use.
            unsafe { self.host.free_exec(chunk.base, CHUNK_LEN) };
        }
        for chunk in slot_chunks {
            // SAFETY: off the table since before the grace period.
            let chunk = unsafe { free(chunk) };
            // SAFETY: no slot of it was in use.
            unsafe { self.host.free_exec(chunk.base(), CHUNK_LEN) };
        }
    }

    fn take_empty_slot_chunks(&self, hold: &Hold) -> Vec<NonNull<SlotChunk>> {
        let mut empty = Vec::new();
        while empty.try_reserve(1).is_ok()
            && let Some(chunk) = self.slots.take_empty(hold)
        {
            empty.push(chunk.pointer());
        }
        empty
    }

    /// Frees arrays that the tables have outgrown, after a grace period; without one if there are none.
    pub(super) fn clean_arrays(&self, books: &mut Locked<'_, H>) {
        if !books.arrays.is_empty() {
            self.quiesce();
            // SAFETY: a grace period has passed since any was retired.
            unsafe { books.arrays.free() };
        }
    }

    // ---- what handlers have asked for
    // ------------------------------------------------------------------------------

    /// Does the work that handlers could only request: breakpoints of probes that they have enabled or
    /// disabled, handles that they have dropped. Every call of the registry does so, too.
    pub fn settle(&self) {
        if !self.is_in_handler() {
            let mut books = self.lock();
            self.settle_locked(&mut books);
        }
    }

    pub(super) fn settle_locked(&self, books: &mut Locked<'_, H>) {
        books.open().refused.forget();
        if !self.switches.take_changes() {
            // Retired pools are freed with what the calls below free; here, those that have become free
            // since.
            self.free_returned_pools(books);
            return;
        }
        self.settle_watches(books);
        // The next call tries again what fails.
        if self.sync_all(books.hold()).is_err() {
            self.switches.note_change();
        }
        let mut orphans = Vec::new();
        let mut collect = |point: &Point<H::Arch>| {
            let is_stuck = point.text.is_planted() && point.nodes().all(|node| node.is(LEAVING));
            for node in point.nodes().lent().filter(|node| node.is(ORPHAN)) {
                if is_stuck || orphans.try_reserve(1).is_err() {
                    self.switches.note_change();
                } else {
                    // SAFETY: an orphan, which is taken off the list below.
                    orphans.push(Some(unsafe { OwnedNode::of_orphan(node) }));
                }
            }
        };
        self.places.all(books.hold()).for_each(|point| collect(&point));
        books.gone.iter().for_each(|point| collect(&point));
        if orphans.is_empty() {
            self.free_returned_pools(books);
        } else {
            self.retire(books, &mut orphans);
        }
    }

    // ---- text that goes away
    // ------------------------------------------------------------------------------------

    /// What [`Events::text_going`](crate::events::Events::text_going) does.
    pub(crate) fn text_going(&self, start: CodeAddr, end: CodeAddr) {
        let mut books = self.lock();
        self.settle_locked(&mut books);
        self.watched_memory_going(books.hold(), start, end);
        let mut has_gone = false;
        let mut open = books.open();
        for point in self.places.all(open.hold).filter(|point| (start..end).contains(&point.place)) {
            has_gone = true;
            self.set_aside(&mut open, point);
        }
        if has_gone {
            self.retire(&mut books, &mut []);
        }
    }

    /// Takes a point whose text has gone off the table.
    pub(super) fn set_aside(&self, books: &mut OpenBooks<'_, H>, point: Lent<'_, Point<H::Arch>>) {
        point.nodes().for_each(|node| node.set(GONE));
        point.set(POINT_GONE);
        self.places.texts().forget::<H>(books.hold, &point);
        self.places.take_off(&point, books.hold);
        if point.head.load(Relaxed).is_null() {
            books.park_if_unused(point);
            return;
        }
        if point.is(PARKED) {
            // From before its probes came.
            books.parked.remove(point.pointer());
            point.clear(PARKED);
        }
        // SAFETY: a point of the table is not among the gone, and this one is not parked any more.
        unsafe { books.gone.push(point.pointer()) };
    }
}

impl<H: Host> Books<H> {
    /// Notes a point without probes, to be freed if it is not in use.
    pub(super) fn park_if_unused(&mut self, point: Lent<'_, Point<H::Arch>>) {
        if point.is_probed() || point.text.is_planted() {
            return;
        }
        if point.is_any(PARKED | POINT_GONE | STEPPED) {
            if point.is(PARKED) {
                return;
            }
            if point.is(POINT_GONE) {
                self.gone.remove(point.pointer());
            }
            point.clear(STEPPED);
        }
        point.set(PARKED);
        // SAFETY: not parked yet, and not among the gone any more; `clean_up` frees what it takes out.
        unsafe { self.parked.push(point.pointer()) };
    }

    /// Whether a point that was parked is kept, as it is used again or a context may be in its slot.
    /// One that a frame names is parked again.
    #[cold]
    fn keeps(&mut self, point: Lent<'_, Point<H::Arch>>) -> bool {
        if point.is_probed() || (point.is(LINGERS) && !point.is(POINT_GONE)) {
            point.clear(PARKED);
            return true;
        }
        let is_stepped = point.is(STEPPED);
        if is_stepped {
            point.clear(STEPPED);
            // SAFETY: in no list since it was taken out of this one; `clean_up` frees what it takes out.
            unsafe { self.parked.push(point.pointer()) };
        }
        is_stepped
    }

    /// Lets a return probe's pool live on by itself until its calls have returned (RET_6).
    pub(super) fn forget_pool(&mut self, node: &Node<H::Arch>) {
        let Handlers::Return(half) = &node.handlers else { return };
        half.pool().forget();
        // SAFETY: its probe, which has it in no list, forgets it once; `clean_up` frees what it takes out.
        unsafe { self.pools.push(half.pool) };
    }

    /// Keeps an array until the next grace period.
    pub(super) fn keep_array(&mut self, array: Option<RetiredArray>) {
        if let Some(array) = array {
            self.arrays.push(array);
        }
    }
}
