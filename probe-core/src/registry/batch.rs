//! Registering: all or nothing (REG_12), in stages that are types.
//!
//! ```text
//!  Wanted ──► Prepared ──► Published ──► Probe
//!  resolved   point, node   on the list   armed
//! ```
//! A stage is done for the whole batch before the next one begins, and takes the values of the one before.
//! Each has its own undo, which needs no memory: [`Prepared::give_up`], [`Published::leave`].

use super::handle::Probe;
use super::optimise::save_of;
use super::plans::{Candidate, Plans};
use super::points::Origin;
use super::resolve::{Boundaries, Resolved};
use crate::addr::CodeAddr;
use crate::arch::Arch;
use crate::error::{BatchError, NoMemory, RegisterError};
use crate::held::{Hold, Lent};
use crate::room::Room;
use crate::state::host::{Host, Notice};
use crate::state::locked::OpenBooks;
use crate::state::owned::OwnedNode;
use crate::state::pending::{AnyProbe, Pending};
use crate::state::point::{HAS_JPROBE, Handlers, NO_JUMP, Node, Point, STARTING, STEPPED};
use crate::state::probes::Probes;
use crate::state::text::writing::Writing;
use alloc::vec::Vec;

/// A probe whose place is known.
struct Wanted<A: Arch> {
    /// Its number in the batch.
    index: usize,
    resolved: Resolved,
    handlers: Pending<A>,
    flags: u32,
}

/// A probe with its node, whose point is in the table. Hits do not find the node yet.
#[must_use]
struct Prepared<'g, A: Arch> {
    index: usize,
    point: Lent<'g, Point<A>>,
    origin: Origin,
    node: OwnedNode<A>,
}

/// A probe on its point's list. Its handlers are silent.
#[must_use]
struct Published<'g, A: Arch>(Prepared<'g, A>);

/// A failed stage: the index of the probe in the batch, and why.
type Failed = (usize, RegisterError);
/// The handlers of a probe that gets no node, and why.
type Refused<H> = (Pending<<H as Host>::Arch>, RegisterError);

impl<A: Arch> Prepared<'_, A> {
    /// Takes it back: nobody has seen the node.
    fn give_up<H: Host<Arch = A>>(self, books: &mut OpenBooks<'_, H>) {
        if matches!(self.node.handlers, Handlers::Jprobe(_)) {
            self.point.clear(HAS_JPROBE);
        }
        books.forget_pool(&self.node);
        // SAFETY: nobody has found it, and its pool has forgotten it, which no call has been followed by.
        books.bury(unsafe { self.node.end() });
        books.park_if_unused(self.point);
    }
}

impl<'g, A: Arch> Published<'g, A> {
    /// Takes it off again, its breakpoint first. The node is freed after a grace period.
    fn leave<H: Host<Arch = A>>(self, probes: &Probes<H>, books: &mut OpenBooks<'g, H>) -> OwnedNode<A> {
        let Prepared { point, node, .. } = self.0;
        if probes.sync_point(books.hold, point.get()).is_err() {
            probes.host.notice(Notice::StuckBreakpoint(point.place));
        }
        probes.take_off(books, &node);
        node
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

    /// Registers all of the probes or none; costs one synchronisation of the cores per stage, however many
    /// there are. The handles come in the probes' order.
    ///
    /// # Errors
    /// The first probe that failed, and why; nothing has changed then.
    pub fn register_all<P: Into<AnyProbe<H::Arch>>>(
        &'static self,
        probes: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Probe<H>>, BatchError> {
        self.register_placed(probes, |_, _| ())
    }

    /// As [`Probes::register_all`]. `placed` is told where each probe is going to stand, by its number in the
    /// batch, before its first hit can come; the registration may fail all the same.
    ///
    /// # Errors
    /// As of [`Probes::register_all`].
    pub fn register_placed<P: Into<AnyProbe<H::Arch>>>(
        &'static self,
        probes: impl IntoIterator<Item = P>,
        mut placed: impl FnMut(usize, CodeAddr),
    ) -> Result<Vec<Probe<H>>, BatchError> {
        if self.is_in_handler() {
            return Err(BatchError { index: 0, error: RegisterError::InHandler });
        }
        let mut wanted = self.find_places(probes)?;
        wanted.iter().for_each(|probe| placed(probe.index, probe.resolved.at));
        let no_memory = |NoMemory| BatchError { index: 0, error: RegisterError::NoMemory };
        let mut handles = room_for(wanted.len()).map_err(no_memory)?;
        let mut leaving = room_for(wanted.len()).map_err(no_memory)?;
        let plans = self.plan_wanted_jumps(&wanted);
        let mut lock = self.lock();
        self.settle_locked(&mut lock);
        let done = if self.switches.has_stopped() {
            Err((0, RegisterError::Stopped))
        } else {
            self.register_wanted(&mut lock.open(), &plans, &mut wanted, &mut handles, &mut leaving)
        };
        if done.is_err() {
            self.free_leaving(&mut lock, &mut leaving);
        }
        self.clean_arrays(&mut lock);
        // Values that the handlers own may call us when they are dropped: not under the lock.
        drop(lock);
        drop(wanted);
        done.map_err(|(index, error)| BatchError { index, error })?;
        Ok(handles)
    }

    /// Looks the places up, before the lock is taken ([`Probes::resolve`] says why).
    fn find_places<P: Into<AnyProbe<H::Arch>>>(
        &self,
        probes: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Wanted<H::Arch>>, BatchError> {
        let mut wanted = Vec::new();
        for (index, probe) in probes.into_iter().enumerate() {
            let AnyProbe { place, handlers, flags } = probe.into();
            let failed = |error| BatchError { index, error };
            let resolved = self.resolve(&place, handlers.wants_entry()).map_err(failed)?;
            wanted.try_reserve(1).map_err(|_| failed(RegisterError::NoMemory))?;
            wanted.push(Wanted { index, resolved, handlers, flags });
        }
        Ok(wanted)
    }

    /// Plans for the jumps that follow by themselves.
    fn plan_wanted_jumps(&self, wanted: &[Wanted<H::Arch>]) -> Plans {
        let mut candidates = Vec::new();
        if self.switches.is_optimising() && candidates.try_reserve_exact(wanted.len()).is_ok() {
            let may_jump = |probe: &&Wanted<_>| {
                probe.flags & NO_JUMP == 0 && !matches!(probe.handlers, Pending::Jprobe(_))
            };
            candidates.extend(wanted.iter().filter(may_jump).map(|probe| Candidate::of(&probe.resolved)));
        }
        self.plan_jumps(candidates)
    }

    /// All stages, and the way back if one fails. Then `wanted` has the handlers to be dropped without the
    /// lock, and `leaving` the nodes to be freed after a grace period; it has room for all of them, as
    /// `handles` has.
    fn register_wanted(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        plans: &Plans,
        wanted: &mut Vec<Wanted<H::Arch>>,
        handles: &mut Vec<Probe<H>>,
        leaving: &mut Vec<Option<OwnedNode<H::Arch>>>,
    ) -> Result<(), Failed> {
        let no_memory = |NoMemory| (0, RegisterError::NoMemory);
        let mut published = room_for(wanted.len()).map_err(no_memory)?;
        let mut lifted = Vec::new();
        let prepared = self.prepare(books, wanted)?;
        let cleared = self.clear_the_way(books.hold, &prepared, &mut lifted);
        let linked = cleared.and_then(|()| self.prepare_tails(&prepared));
        if let Err(failed) = linked {
            prepared.into_iter().for_each(|prepared| prepared.give_up(books));
            self.jump_again(books, lifted);
            return Err(failed);
        }
        published.extend(prepared.into_iter().map(|prepared| self.publish(books.hold, prepared)));
        let mut jumps = Vec::new();
        let armed = self.let_tails_jump(books.hold, &published).and_then(|()| {
            jumps =
                self.prepare_jumps(books, plans, published.iter().map(|Published(probe)| probe.point.get()));
            self.arm_all(books.hold, &published)
        });
        if let Err(failed) = armed {
            published.iter().for_each(|Published(probe)| probe.node.leave());
            leaving.extend(published.into_iter().map(|probe| Some(probe.leave(self, books))));
            self.jump_again(books, lifted);
            return Err(failed);
        }
        for Published(probe) in published {
            probe.node.clear(STARTING);
            handles.push(Probe::new(self, probe.node));
        }
        // Points that had a jump get another one, if they can.
        if jumps.try_reserve(lifted.len()).is_ok() {
            jumps.append(&mut lifted);
        }
        self.optimise_new(books, plans, jumps);
        Ok(())
    }

    // ---- prepared
    // -------------------------------------------------------------------------------------------------

    /// Gives every probe its point and its node. The probe that fails, and those behind it, are left in
    /// `wanted`.
    fn prepare<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        wanted: &mut Vec<Wanted<H::Arch>>,
    ) -> Result<Vec<Prepared<'g, H::Arch>>, Failed> {
        let no_memory = |NoMemory| (0, RegisterError::NoMemory);
        let mut prepared: Vec<Prepared<'g, H::Arch>> = room_for(wanted.len()).map_err(no_memory)?;
        let mut refused = room_for(wanted.len()).map_err(no_memory)?;
        books.keep_array(self.places.reserve(wanted.len()).map_err(no_memory)?);
        // In the order of addresses a function's instructions are walked over once.
        wanted.sort_unstable_by_key(|probe| (probe.resolved.at, probe.index));
        let mut boundaries = Boundaries::new();
        let mut failed: Option<Failed> = None;
        let writing = Writing::begin(&self.host, books.hold);
        for probe in wanted.drain(..) {
            let index = probe.index;
            if failed.as_ref().is_some_and(|(first, _)| *first < index) {
                refused.push(probe);
                continue;
            }
            match self.prepare_one(books, &mut boundaries, probe, &mut refused) {
                Ok(probe) => prepared.push(probe),
                Err(error) => failed = Some((index, error)),
            }
        }
        drop(writing);
        wanted.append(&mut refused);
        if let Some(failed) = failed {
            prepared.into_iter().for_each(|prepared| prepared.give_up(books));
            return Err(failed);
        }
        // Probes on one place are called newest first.
        prepared.sort_unstable_by_key(|probe| probe.index);
        Ok(prepared)
    }

    /// Prepares one of them. If it fails, `refused`, which has room, gets it back.
    fn prepare_one<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        boundaries: &mut Boundaries,
        wanted: Wanted<H::Arch>,
        refused: &mut Vec<Wanted<H::Arch>>,
    ) -> Result<Prepared<'g, H::Arch>, RegisterError> {
        let (point, origin) = match self.point_for(books, boundaries, &wanted.resolved) {
            Ok(found) => found,
            Err(error) => {
                refused.push(wanted);
                return Err(error);
            }
        };
        let Wanted { index, resolved, handlers, flags } = wanted;
        match self.node_for(books, point, handlers, flags) {
            Ok(node) => Ok(Prepared { index, point, origin, node }),
            Err((handlers, error)) => {
                refused.push(Wanted { index, resolved, handlers, flags });
                books.park_if_unused(point);
                Err(error)
            }
        }
    }

    /// The node for a probe on `point`, with a pool for a return probe. If it fails, the handlers come back.
    #[allow(
        clippy::result_large_err,
        reason = "where memory is what lacks, there is none to box the handlers"
    )]
    fn node_for<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        point: Lent<'g, Point<H::Arch>>,
        handlers: Pending<H::Arch>,
        flags: u32,
    ) -> Result<OwnedNode<H::Arch>, Refused<H>> {
        let is_jprobe = matches!(handlers, Pending::Jprobe(_));
        if is_jprobe && point.is(HAS_JPROBE) {
            return Err((handlers, RegisterError::SecondJprobe(point.place)));
        }
        let room = match Room::new() {
            Ok(room) => room,
            Err(error) => return Err((handlers, error.into())),
        };
        let handlers = match handlers {
            Pending::Kprobe { pre, post, fault } => Handlers::Kprobe { pre, post, fault },
            Pending::Jprobe(entry) => Handlers::Jprobe(entry),
            Pending::Return { handlers, active } => {
                match self.prepare_return(books, &handlers, active, save_of::<H>(flags)) {
                    Ok(half) => Handlers::Return(half.fill(handlers)),
                    Err(error) => return Err((Pending::Return { handlers, active }, error)),
                }
            }
        };
        if is_jprobe {
            point.set(HAS_JPROBE);
        }
        books.generation = books.generation.wrapping_add(1);
        // SAFETY: a point is freed after a grace period that begins when it has no node on its list.
        let node = unsafe { Node::new(point, handlers, STARTING | flags, books.generation, self) };
        let node = OwnedNode::new(room, node);
        if let Handlers::Return(half) = &node.handlers {
            // SAFETY: what frees the node first has the pool forget it, and then waits (`take_off`,
            // `give_up`).
            unsafe { half.belong_to(node.known()) };
        }
        Ok(node)
    }

    /// Takes jumps out of text where the new probes need a breakpoint, at least for a while: at their places,
    /// if the detour there does not serve them, and over them. Adds the points to `lifted`.
    fn clear_the_way<'g>(
        &'g self,
        hold: &'g Hold,
        prepared: &[Prepared<'g, H::Arch>],
        lifted: &mut Vec<&'g Point<H::Arch>>,
    ) -> Result<(), Failed> {
        if self.places.texts().jumps() == 0 {
            return Ok(());
        }
        for Prepared { index, point, node, .. } in prepared {
            let own = (!self.is_served(point, node)).then_some(point.get());
            for point in own.into_iter().chain(self.jumps_over(hold, point.place)) {
                lifted.try_reserve(1).map_err(|_| (*index, RegisterError::NoMemory))?;
                lifted.push(point);
            }
        }
        self.unoptimise_points(hold, lifted).map_err(|error| (0, error.into()))
    }

    /// Gives jumps back to points that have lost them for nothing.
    fn jump_again<'g>(&'static self, books: &mut OpenBooks<'g, H>, mut lifted: Vec<&'g Point<H::Arch>>) {
        // Points without other probes have gone.
        lifted.retain(|point| point.nodes().next().is_some());
        if lifted.is_empty() {
            return;
        }
        // All cores see the text that has been restored, before a jump is laid over it.
        self.host.sync_cores();
        // Text that could not be written before can hardly be written now, and keeps its breakpoint.
        let _ = self.unoptimise_points(books.hold, &lifted);
        // They have detours.
        let _ = self.optimise_points(books, &Plans::none(), &mut lifted);
    }

    /// Lets the slots of boosted points end in breakpoints, where a post handler comes.
    fn prepare_tails(&self, prepared: &[Prepared<'_, H::Arch>]) -> Result<(), Failed> {
        let mut changed: Vec<&Point<H::Arch>> =
            room_for(prepared.len()).map_err(|NoMemory| (0, RegisterError::NoMemory))?;
        for Prepared { index, point, .. } in prepared.iter().filter(|probe| probe.node.has_post()) {
            match self.end_in_breakpoint(point) {
                Ok(true) => changed.push(point),
                Ok(false) => {}
                Err(error) => {
                    for point in changed {
                        // Its mode is as before, so no context has a frame for it. A failure only costs a
                        // second trap.
                        let _ = self.let_tail_jump(point);
                    }
                    return Err((*index, error.into()));
                }
            }
        }
        if !changed.is_empty() {
            self.host.sync_cores();
        }
        Ok(())
    }

    // ---- published
    // ------------------------------------------------------------------------------------------------

    /// Puts the node on its point's list, silent as yet.
    fn publish<'g>(&self, hold: &Hold, prepared: Prepared<'g, H::Arch>) -> Published<'g, H::Arch> {
        let Prepared { point, node, .. } = &prepared;
        if node.has_post() {
            self.expect_post(point);
        }
        // SAFETY: `node_for` made it for this point; what takes it off waits before it buries it
        // (`free_leaving`).
        unsafe { node.link(hold, point) };
        self.update_detour(hold, point);
        Published(prepared)
    }

    /// Lets the slots of boosted points end in jumps, where they do not yet.
    fn let_tails_jump(&self, hold: &Hold, published: &[Published<'_, H::Arch>]) -> Result<(), Failed> {
        let has_old = published
            .iter()
            .any(|Published(probe)| probe.origin == Origin::Known && self.has_slow_tail(&probe.point));
        if has_old {
            // A context may still be in such a slot with a frame, from when there was a post handler.
            self.quiesce();
            self.mark_stepped(hold);
        }
        let writing = Writing::begin(&self.host, hold);
        let result = published
            .iter()
            .filter(|Published(probe)| probe.origin == Origin::New || !probe.point.is(STEPPED))
            .try_for_each(|Published(probe)| {
                self.let_tail_jump(&probe.point).map_err(|error| (probe.index, error.into()))
            });
        drop(writing);
        if has_old {
            self.clear_stepped(hold);
        }
        result
    }

    // ---- armed
    // ----------------------------------------------------------------------------------------------------

    /// Breakpoints.
    fn arm_all(&self, hold: &Hold, published: &[Published<'_, H::Arch>]) -> Result<(), Failed> {
        let mut has_changed = false;
        let writing = Writing::begin(&self.host, hold);
        for Published(probe) in published {
            match self.sync_point(hold, probe.point.get()) {
                Ok(changed) => has_changed |= changed,
                Err(error) => return Err((probe.index, error.into())),
            }
        }
        drop(writing);
        if has_changed {
            self.host.sync_cores();
        }
        Ok(())
    }
}

/// An empty list with room for `count`.
fn room_for<T>(count: usize) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| NoMemory)?;
    Ok(list)
}
