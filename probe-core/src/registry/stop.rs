//! Stopping: nothing new, nothing in text, no handler; then pending calls are handed back where the host can
//! show their stacks, and what remains is named (CTL_7).

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, Memory, Returns};
use crate::error::{Remains, StopError};
use crate::held::Hold;
use crate::list::List;
use crate::state::host::{Host, Waiting};
use crate::state::instance::Instance;
use crate::state::locked::Locked;
use crate::state::point::{GONE, Handlers, LINGERS, Node};
use crate::state::pool::Pool;
use crate::state::probes::Probes;
use crate::state::stub::Stub;
use crate::state::task::Task;
use crate::sync::{Relaxed, Release};
use core::ptr::{self, NonNull};

/// Probes that have stopped. Their text is original, no handler runs or will run, and registering is refused
/// ([`RegisterError::Stopped`](crate::error::RegisterError::Stopped)). Handles stay valid: their probes are
/// gone, counters can be read, and a handle that is dropped frees what it had.
pub struct Stopped<H: Host>(&'static Probes<H>);

impl<H: Host> Probes<H> {
    /// Stops all probes: see [`Stopped`]. What is still pending, [`Stopped::drain`] hands back and names.
    ///
    /// # Errors
    /// Called from a handler; or text could not be written: see [`StopError`].
    pub fn stop(&'static self) -> Result<Stopped<H>, StopError> {
        if self.is_in_handler() {
            return Err(StopError::InHandler);
        }
        let mut books = self.lock();
        // Under the lock, as a registration looks at it.
        self.switches.stop(true);
        self.settle_locked(&mut books);
        let hold = books.hold();
        self.places.all(hold).for_each(|point| point.get().nodes().for_each(|node| node.set(GONE)));
        self.watches.all(hold).for_each(|(_, node)| node.set(GONE));
        let done = self.sync_all(hold);
        // What is not to be armed does not fail.
        let _ = self.sync_watches(hold);
        self.quiesce();
        self.clean_arrays(&mut books);
        drop(books);
        done.map_err(StopError::Text).map(|()| Stopped(self))
    }

    /// Ends what [`Probes::stop`] has begun, also where it has failed: probes can be registered again. Those
    /// that were there stay gone.
    ///
    /// # Errors
    /// Called from a handler.
    pub fn start_again(&self) -> Result<(), StopError> {
        if self.is_in_handler() {
            return Err(StopError::InHandler);
        }
        let lock = self.lock();
        self.switches.stop(false);
        drop(lock);
        Ok(())
    }
}

impl<H: Host> Stopped<H> {
    /// Hands pending calls back whose stacks the host shows ([`Host::for_each_waiting`]): they return by
    /// themselves, without an exit handler. Frees what can be freed, and says what remains. Call it again,
    /// later, as long as somebody else's doing is missing: calls return, handles are dropped.
    ///
    /// Once probes can be registered again, nothing is handed back.
    ///
    /// # Errors
    /// Called from a handler.
    pub fn drain(&self) -> Result<Remains, StopError> {
        let probes = self.0;
        if probes.is_in_handler() {
            return Err(StopError::InHandler);
        }
        if probes.hand_back_waiting() {
            let mut lock = probes.lock();
            probes.settle_locked(&mut lock);
            // What a frame has named may be named by none any more.
            probes.retire(&mut lock, &mut []);
        }
        Ok(probes.remains())
    }

    /// Ends it: see [`Probes::start_again`].
    ///
    /// # Errors
    /// Called from a handler.
    pub fn start_again(&self) -> Result<(), StopError> {
        self.0.start_again()
    }
}

/// What drops a call's private data, and lets its instance go.
type Ended<H> = List<Instance<<H as Host>::Arch>>;

impl<H: Host> Probes<H> {
    /// Hands back what waiting tasks have pending, unless probes have started again.
    fn hand_back_waiting(&self) -> bool {
        let mut ended = List::new();
        let lock = self.lock();
        if !self.switches.has_stopped() {
            return false;
        }
        self.host.for_each_waiting(&mut |waiting| {
            self.hand_back(&lock, waiting, &mut ended);
            self.clear_left(waiting, &mut ended);
        });
        drop(lock);
        // A value of the user's that is dropped may call us, or take a lock that the host has held.
        while let Some(instance) = self.next_ended(&mut ended) {
            // SAFETY: its pool is not over as long as it is claimed.
            let instance = unsafe { instance.as_ref() };
            // SAFETY: claimed by who has put it on the list, and nobody has taken the data.
            unsafe { instance.drop_data() };
            instance.release();
        }
        true
    }

    fn next_ended(&self, ended: &mut Ended<H>) -> Option<NonNull<Instance<H::Arch>>> {
        ended.pop(self.lock().hold()).map(|instance| instance.pointer())
    }

    /// Puts return addresses back that are in the memory of a task that waits, and ends their calls. One that
    /// cannot be put back keeps its call.
    fn hand_back(&self, lock: &Locked<'_, H>, waiting: &Waiting<'_, H::Arch>, ended: &mut Ended<H>) {
        let lies_here = |instance: &&Instance<H::Arch>| {
            let list = instance.task.load(Relaxed);
            let is_listed = list.is_null() || ptr::eq(list, waiting.task.identity());
            let (frame, stack) = (instance.frame(), &waiting.stack);
            is_listed && instance.life.is_pending() && stack.start <= frame && frame <= stack.end
        };
        for at in words(waiting) {
            let Ok(word) = self.host.memory().read_usize(at) else { continue };
            if let Some(instance) = self.called(lock.hold(), CodeAddr::new(word)).filter(lies_here)
                && !self.stands_behind_another(lock, instance)
                && self.may_be_replaced(instance, waiting)
            {
                for (copy, word) in self.copies(instance, waiting) {
                    debug_assert_eq!(word, Returns::Plainly, "looked at just now");
                    // It was written just now.
                    let _ = self.host.memory().write_usize(copy, instance.home().as_usize());
                }
                self.end_call(lock.hold(), waiting.task, instance, ended);
            }
        }
    }

    /// The words that return to the stub of `instance`, and how.
    fn copies<'m>(
        &'m self,
        instance: &'m Instance<H::Arch>,
        waiting: &'m Waiting<'m, H::Arch>,
    ) -> impl Iterator<Item = (usize, Returns)> + 'm {
        words(waiting).filter_map(|at| {
            let word = self.host.memory().read_usize(at).ok()?;
            let returns = H::Arch::CALLS?.returns(word, instance.stub);
            (returns != Returns::Elsewhere).then_some((at, returns))
        })
    }

    /// Whether all return addresses of a call can be put back: each is what it looks like, and is written
    /// once as it is.
    fn may_be_replaced(&self, instance: &Instance<H::Arch>, waiting: &Waiting<'_, H::Arch>) -> bool {
        self.copies(instance, waiting).all(|(at, returns)| {
            let memory = self.host.memory();
            returns == Returns::Plainly
                && memory.read_usize(at).is_ok_and(|word| memory.write_usize(at, word).is_ok())
        })
    }

    /// Whether a call returns by way of a newer one, with which it is handed back: a copy of its own return
    /// address is a remnant.
    fn stands_behind_another(&self, lock: &Locked<'_, H>, instance: &Instance<H::Arch>) -> bool {
        let mut is_behind = false;
        self.for_each_pool(lock, &mut |pool| {
            is_behind |= pool
                .instances()
                .any(|newer| newer.life.is_pending_in_chain() && newer.real() == instance.stub);
        });
        is_behind
    }

    /// The call whose stub is at `at`.
    fn called<'g>(&self, hold: &'g Hold, at: CodeAddr) -> Option<&'g Instance<H::Arch>> {
        match self.stubs.may_hold(at).then(|| self.stubs.chunk(at, hold))??.stub(at, hold)? {
            Stub::Handed(instance) => Some(instance),
            Stub::Left(_) => None,
        }
    }

    /// Ends a call that has got its return address back, and those that share it.
    fn end_call<'g>(
        &self,
        hold: &'g Hold,
        task: &Task<H::Arch>,
        mut instance: &'g Instance<H::Arch>,
        ended: &mut Ended<H>,
    ) {
        loop {
            let real = instance.real();
            if instance.life.claim_live() {
                unlink(task, instance);
                // SAFETY: on no list any more; freed after it has been released, by `hand_back_waiting`.
                unsafe { ended.push(NonNull::from(instance)) };
            }
            let Some(older) = self.called(hold, real) else { return };
            instance = older;
        }
    }

    /// Clears away what else is on the list of a task that waits: calls that have returned in another task,
    /// and those that were left, below its stack pointer.
    fn clear_left(&self, waiting: &Waiting<'_, H::Arch>, ended: &mut Ended<H>) {
        if !waiting.task.has_one_stack() {
            return;
        }
        let mut link = &waiting.task.pending;
        // SAFETY: what is on the task's list is not freed.
        while let Some(instance) = unsafe { link.load(Relaxed).as_ref() } {
            if instance.life.has_returned() {
                link.store(instance.next.load(Relaxed), Release);
                instance.release();
            } else if instance.frame() < waiting.stack.start && instance.life.claim_live() {
                link.store(instance.next.swap(ptr::null_mut(), Relaxed), Release);
                instance.ends().abandoned.rise();
                // SAFETY: as in `end_call`.
                unsafe { ended.push(NonNull::from(instance)) };
            } else {
                link = &instance.next;
            }
        }
    }

    // ---- what remains
    // -----------------------------------------------------------------------------------------------

    /// What cannot be freed now.
    fn remains(&self) -> Remains {
        let lock = self.lock();
        let hold = lock.hold();
        let mut remains = Remains::default();
        self.for_each_pool(&lock, &mut |pool| {
            for instance in pool.instances().filter(|instance| instance.life.is_pending()) {
                remains.calls += 1;
                remains.call = Some(instance.home());
            }
            remains.stubs += pool.given_up();
        });
        self.for_each_node(&lock, &mut |_| remains.probes += 1);
        remains.probes += self.watches.all(hold).count();
        remains.stubs += self.stubs.all(hold).map(|chunk| chunk.left(hold)).sum::<usize>();
        let lingering = self.places.all(hold).filter(|point| point.has_slot() && point.is(LINGERS)).count();
        remains.slots = lingering + lock.parked.iter().filter(|point| point.has_slot()).count();
        remains.detours = self.detours.count(hold);
        remains
    }

    fn for_each_node(&self, lock: &Locked<'_, H>, visit: &mut dyn FnMut(&Node<H::Arch>)) {
        self.places.all(lock.hold()).for_each(|point| point.nodes().for_each(&mut *visit));
        lock.gone.iter().for_each(|point| point.nodes().for_each(&mut *visit));
    }

    /// All pools: those of probes, and those whose probe has gone.
    fn for_each_pool(&self, lock: &Locked<'_, H>, visit: &mut dyn FnMut(&Pool<H::Arch>)) {
        self.for_each_node(lock, &mut |node| {
            if let Handlers::Return(half) = &node.handlers {
                visit(half.pool());
            }
        });
        lock.pools.iter().for_each(|pool| visit(&pool));
    }
}

/// The words that lie wholly in a waiting task's memory, aligned.
fn words<A: Arch>(waiting: &Waiting<'_, A>) -> impl Iterator<Item = usize> {
    const WORD: usize = size_of::<usize>();
    core::iter::once(&waiting.stack).chain(waiting.elsewhere).flat_map(|range| {
        let first = range.start.next_multiple_of(WORD);
        (first..range.end.saturating_sub(WORD - 1)).step_by(WORD)
    })
}

/// Takes a claimed call off the list of its task, which does not run.
fn unlink<A: Arch>(task: &Task<A>, instance: &Instance<A>) {
    let this = ptr::from_ref(instance).cast_mut();
    let after = instance.next.swap(ptr::null_mut(), Relaxed);
    let mut link = &task.pending;
    // SAFETY: what is on the task's list is not freed.
    while let Some(found) = unsafe { link.load(Relaxed).as_ref() } {
        if ptr::eq(found, this) {
            link.store(after, Release);
            return;
        }
        link = &found.next;
    }
}
