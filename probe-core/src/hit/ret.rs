//! Return probes' lock-free half: following a call at its entry, and the way back through its stub.
//!
//! Ways into a call, fastest first: [`enter_by_owner`](Probes::enter_by_owner) (detours only),
//! [`enter_plain`](Probes::enter_plain), [`enter_general`](Probes::enter_general); a hit starts at
//! [`enter_call`](Probes::enter_call), which picks one of the last two. Ways out: [`fast`] for the usual
//! return, [`returned_pinned`](Probes::returned_pinned) for all others, [`stale`] for calls that never
//! return.

pub(crate) mod fast;
mod stale;
mod stub;

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, Entry, Regs, Resume};
use crate::state::context::Here;
use crate::state::handler::Follow;
use crate::state::host::{Host, Notice, RegsOf, running};
use crate::state::instance::Instance;
use crate::state::life::Claimed;
use crate::state::pinned::Pinned;
use crate::state::point::Node;
use crate::state::probes::Probes;
use crate::state::return_probe::ReturnProbe;
use crate::state::section::Section;
use crate::state::stub::Stub;
use crate::state::task::Task;
use crate::sync::{Relaxed, Release};
use core::ptr;

impl<H: Host> Probes<H> {
    /// The function that every return stub leads to, in the manner of [`Probes::detour_handlers`].
    #[doc(hidden)]
    pub fn return_handler() -> extern "C" fn(usize, *mut RegsOf<H>) -> Resume {
        fast::return_from_stub::<H>
    }

    // ---- into a call --------------------------------------------------------------------------------------

    /// Follows a call from its entry, if there is an instance and the entry handler wants it. Returns what
    /// has been done to the registers, other than the return address.
    ///
    /// Not inline: it needs more registers than a kprobe's hit should have to save, and the plainest case
    /// saves none for the others.
    #[inline(never)]
    pub(crate) fn enter_call(
        &self,
        here: Here<'_, H::Arch>,
        node: &Node<H::Arch>,
        probe: &ReturnProbe<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        if probe.entry.is_none()
            && let Some(followed) = self.enter_plain(here, probe.pool(), regs)
        {
            if let Err(instance) = followed {
                instance.drop_unreturned();
            }
            return Resume::Unchanged;
        }
        self.enter_general(here, node, probe, regs)
    }

    /// The running task, unless the stack pointer contradicts the host.
    fn task_at(&self, sp: usize) -> Option<&Task<H::Arch>> {
        self.host.task().filter(|task| task.runs_at(sp))
    }

    /// As [`Probes::enter_call`], for any call and any probe. If the running stack's owner is unknown, the
    /// call is on no list.
    #[inline(never)]
    fn enter_general(
        &self,
        here: Here<'_, H::Arch>,
        node: &Node<H::Arch>,
        probe: &ReturnProbe<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let pool = probe.pool();
        let Some(entry) = self.entry_of_call(regs) else { return pool.ends.miss() };
        let (sp, home) = (regs.sp(), Some(entry.return_address));
        let task = self.task_at(sp);
        if let Some(task) = task.filter(|task| !task.is_idle()) {
            // Calls that were left by a longjmp lie below the new one.
            self.drop_stale(task, sp, home, |instance| instance.frame() > entry.frame);
        }
        let taken = pool.take(here.identity()).or_else(|| {
            self.drop_stale(task?, sp, home, |_| false);
            pool.take(here.identity())
        });
        let Some(instance) = taken else { return pool.ends.miss() };
        match self.ask_and_bind(here, node, probe, task, instance, entry, regs) {
            Resume::Changed if regs.sp() != sp => Resume::Moved,
            resume => resume,
        }
    }

    /// The call that has just been entered; `None` if its stack cannot be read.
    #[inline(always)]
    fn entry_of_call(&self, regs: &RegsOf<H>) -> Option<Entry> {
        H::Arch::CALLS?.entry(regs, self.host.memory()).ok()
    }

    /// Whether the call that has just been entered returns to the program's own text.
    pub(crate) fn is_unfollowed(&self, regs: &RegsOf<H>, section: Section<'_>) -> bool {
        self.entry_of_call(regs).is_some_and(|entry| !self.is_stub(entry.return_address, section))
    }

    /// Whether such a call has become a followed one.
    pub(crate) fn has_followed(&self, regs: &RegsOf<H>, section: Section<'_>) -> bool {
        let Some(entry) = self.entry_of_call(regs) else { return false };
        let newest = self.host.task().and_then(Task::newest);
        newest.is_some_and(|newest| entry.return_address == newest.stub)
            || self.is_stub(entry.return_address, section)
    }

    /// Asks the entry handler, and makes the call return to the stub of `instance`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "it is a part of another function, inline")]
    fn ask_and_bind(
        &self,
        here: Here<'_, H::Arch>,
        node: &Node<H::Arch>,
        probe: &ReturnProbe<H::Arch>,
        task: Option<&Task<H::Arch>>,
        instance: &Instance<H::Arch>,
        entry: Entry,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let real = entry.return_address;
        let section = here.section();
        let home = if self.is_stub(real, section) { self.home_of_stub(real, section) } else { real };
        let mut resume = Resume::Unchanged;
        if let Some(handler) = &probe.entry {
            here.set_current(node);
            // SAFETY: the instance is ours, its data memory free and of the handlers' layout.
            let entered = unsafe { handler.enter(regs, node.known(), home, instance.data) };
            resume = entered.resume;
            if entered.follow == Follow::No {
                instance.veto();
                return resume;
            }
        }
        let older = task.map_or(ptr::null_mut(), |task| task.pending.load(Relaxed));
        if let Err(instance) = self.bind_call(task, older, instance, entry, home, regs) {
            instance.drop_unreturned();
        }
        resume
    }

    /// Makes the call, whose home is `home`, return to the stub of `instance`. `older` is the task's newest
    /// pending return; without a task the call is on no list.
    ///
    /// # Errors
    /// The return address could not be replaced: the caller [drops](Instance::drop_unreturned) the call.
    #[inline(always)]
    fn bind_call<'a>(
        &self,
        task: Option<&Task<H::Arch>>,
        older: *mut Instance<H::Arch>,
        instance: &'a Instance<H::Arch>,
        entry: Entry,
        home: CodeAddr,
        regs: &mut RegsOf<H>,
    ) -> Result<(), &'a Instance<H::Arch>> {
        let list = task.map_or(ptr::null(), Task::identity);
        instance.bind(entry.return_address, home, entry.frame, list);
        self.link_call(task, older, instance, regs)
    }

    /// As [`Probes::bind_call`], for an instance that is bound already.
    #[inline(always)]
    fn link_call<'a>(
        &self,
        task: Option<&Task<H::Arch>>,
        older: *mut Instance<H::Arch>,
        instance: &'a Instance<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Result<(), &'a Instance<H::Arch>> {
        let set =
            H::Arch::CALLS.map(|calls| calls.set_return_address(regs, instance.stub, self.host.memory()));
        let Some(Ok(())) = set else { return Err(instance) };
        if let Some(task) = task {
            instance.next.store(older, Relaxed);
            task.pending.store(ptr::from_ref(instance).cast_mut(), Release);
        }
        instance.calls.rise_alone();
        Ok(())
    }

    // ---- out of a call ------------------------------------------------------------------------------------

    /// Brings a call home that has returned to `stub`: all calls that share the return address, innermost
    /// first. This needs no list and no task, and trusts none.
    #[inline(never)]
    fn returned_pinned(&self, regs: &mut RegsOf<H>, stub: CodeAddr, pinned: Pinned) -> Resume {
        let home = match running(&self.host) {
            Some(context) => {
                let inside = context.open();
                let here = inside.here();
                let may_call = inside.was_outside() && here.depth() == 0;
                self.bring_home(stub, here.section(), may_call.then_some(here), regs)
            }
            None => {
                let inside = self.anonymous();
                self.bring_home(stub, inside.section(), None, regs)
            }
        };
        if let Err(stub) = home {
            self.host.notice(Notice::LostReturn { stub });
            self.host.stop(regs);
        }
        pinned.end(&self.host);
        Resume::Changed
    }

    /// The same in a section. Exit handlers are called if `here` is given.
    ///
    /// # Errors
    /// The stub that belongs to no call.
    fn bring_home(
        &self,
        stub: CodeAddr,
        section: Section<'_>,
        here: Option<Here<'_, H::Arch>>,
        regs: &mut RegsOf<H>,
    ) -> Result<(), CodeAddr> {
        let home = self.home_of(stub, section);
        if home == stub {
            return Err(stub);
        }
        regs.set_pc(home);
        let mut at = stub;
        while let Some(found) = self.stub_at(at, section) {
            let instance = match found {
                Stub::Handed(instance) => instance,
                Stub::Left(left) => {
                    left.come_back();
                    break;
                }
            };
            let real = instance.real();
            match instance.life.claim() {
                Some(Claimed::Live) => self.finish_call(section, here, instance, regs),
                // Counted as abandoned, and off its task's list.
                Some(Claimed::GivenUp) => instance.release(),
                None => return Err(at),
            }
            at = real;
        }
        Ok(())
    }

    /// Ends one claimed call: calls its exit handler, if `here` is given and it has one, and releases its
    /// instance.
    fn finish_call(
        &self,
        section: Section<'_>,
        here: Option<Here<'_, H::Arch>>,
        instance: &Instance<H::Arch>,
        regs: &mut RegsOf<H>,
    ) {
        let owner = instance.task.load(Relaxed);
        let own_task = self.task_at(regs.sp()).filter(|task| ptr::eq(task.identity(), owner));
        if let Some(task) = own_task {
            self.unlink(task, instance, regs.sp());
        }
        let ends = instance.ends();
        if let Some(here) = here {
            let ending = ends.ending(section);
            here.set_current(ending.probe.node());
            // SAFETY: the call is claimed, and its data still there; the section has found the ending.
            unsafe { ending.run(regs, instance.data) };
            here.set_current(ptr::null());
        } else {
            if let Some(probe) = ends.probe.get(section) {
                Node::of(probe).missed.rise();
            }
            // SAFETY: the call is claimed, and its data still there.
            unsafe { instance.drop_data() };
        }
        if own_task.is_some() || owner.is_null() || !instance.life.leave_to_owner() {
            instance.release();
        }
    }

    /// Takes a claimed call off its task's list. Newer calls that certainly will not return are dropped.
    fn unlink(&self, task: &Task<H::Arch>, instance: &Instance<H::Arch>, sp: usize) {
        let this = ptr::from_ref(instance).cast_mut();
        if task.pending.load(Relaxed) != this {
            self.drop_stale(task, sp, None, |other| ptr::eq(other, instance));
        }
        let after = instance.next.load(Relaxed);
        let mut link = &task.pending;
        loop {
            let other = link.load(Relaxed);
            if other == this {
                link.store(after, Release);
                return;
            }
            // SAFETY: what is on the task's list is not freed.
            let Some(other) = (unsafe { other.as_ref() }) else { return };
            link = &other.next;
        }
    }
}
