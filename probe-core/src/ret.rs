//! Return probes' lock-free half: following a call at its entry, and the way back through its stub.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Entry, Regs, Resume, SaveSet, TrampolineHandler};
use crate::context::{Context, Inside, Section, Task};
use crate::hit::RegsOf;
use crate::host::{Host, Notice};
use crate::instance::{Instance, Pool};
use crate::kretprobe::{Call, Follow, ReturnProbe};
use crate::point::Node;

use crate::registry::Probes;
use crate::slots::{CHUNK_LEN, OWN, chunk_base};
use crate::sync::{AtomicPtr, AtomicUsize, Relaxed, Release, follow};
use crate::table::Keyed;
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr;

/// The most stubs that one return address leads through: more than any chain of tail calls between probed functions.
const MAX_CHAIN: usize = 1 << 16;

/// A chunk of return stubs. The last word of its executable memory is its own address, for [`return_from_stub`].
pub(crate) struct StubChunk<H: Host> {
    pub(crate) base: CodeAddr,
    /// What their trampoline saves.
    pub(crate) save: SaveSet,
    pub(crate) probes: &'static Probes<H>,
    /// Which instance a stub belongs to; null for free ones. Stub 0 is never used.
    pub(crate) instances: Box<[AtomicPtr<Instance<H::Arch>>]>,
    /// Where the call that a stub belongs to ends up: what [`Host::stubs_added`] shows to unwinders.
    pub(crate) homes: Box<[AtomicUsize]>,
    /// How many stubs are free; under the registry's lock.
    pub(crate) free: AtomicUsize,
    /// Where the search for a free one goes on; under the registry's lock.
    pub(crate) cursor: AtomicUsize,
}

impl<H: Host> Keyed for StubChunk<H> {
    fn key(&self) -> usize {
        self.base.as_usize()
    }
}

impl<H: Host> StubChunk<H> {
    /// The instance that `stub` belongs to, if it is one. The caller is inside.
    fn instance(&self, stub: CodeAddr) -> Option<&Instance<H::Arch>> {
        self.instance_around(stub).filter(|instance| instance.stub == stub)
    }

    /// The instance whose stub lies around `at`, an address in the chunk. The caller is inside.
    #[inline(always)]
    fn instance_around(&self, at: CodeAddr) -> Option<&Instance<H::Arch>> {
        let offset = at.as_usize() & (CHUNK_LEN - 1);
        let cell = self.instances.get(offset.checked_div(H::Arch::STUB_LEN)?)?;
        // SAFETY: instances are freed after a grace period, and the caller is inside.
        unsafe { follow(cell).as_ref() }
    }

    /// The word for where the call that stub number `index` is handed out for ends up.
    pub(crate) fn home(&self, index: usize) -> Option<&AtomicUsize> {
        self.homes.get(index)
    }
}

/// From the lowest chunk of return stubs that there has been to the end of the highest: most return addresses are
/// told from stubs by that.
pub(crate) struct StubRange {
    low: AtomicUsize,
    high: AtomicUsize,
}

impl StubRange {
    /// Holds nothing.
    pub(crate) const fn new() -> Self {
        Self { low: AtomicUsize::new(usize::MAX), high: AtomicUsize::new(0) }
    }

    /// Lets it hold the chunk at `base`, before a stub of it is handed out. Under the registry's lock.
    pub(crate) fn add(&self, base: CodeAddr) {
        let end = base.as_usize().wrapping_add(CHUNK_LEN - 1);
        self.low.fetch_min(base.as_usize(), Relaxed);
        self.high.fetch_max(end, Relaxed);
    }

    /// Whether `at` may be a stub. Who sees a stub sees the range with it: both were stored before it was handed out.
    #[inline(always)]
    fn may_hold(&self, at: CodeAddr) -> bool {
        self.low.load(Relaxed) <= at.as_usize() && at.as_usize() <= self.high.load(Relaxed)
    }
}

/// [`return_from_stub`] as a trampoline's handler.
pub(crate) struct Returned<H>(PhantomData<H>);

impl<H: Host> TrampolineHandler<RegsOf<H>> for Returned<H> {
    const FUNCTION: extern "C" fn(usize, *mut RegsOf<H>) -> Resume = return_from_stub::<H>;
}

/// What every return stub of `Probes<H>` leads to, by way of the backend's trampoline.
#[inline(always)]
extern "C" fn return_from_stub<H: Host>(stub: usize, regs: *mut RegsOf<H>) -> Resume {
    // SAFETY: the trampoline gives the registers it has saved, which nobody else uses meanwhile.
    let regs = unsafe { &mut *regs };
    let stub = CodeAddr::new(stub);
    let probes = probes_of::<H>(stub);
    probes.host.pin();
    // The usual case: the context is idle, the call is the newest of its own task, and its return address is no stub.
    let Some(context) = probes.host.context() else { return returned_otherwise::<H>(stub, regs) };
    let Some(task) = probes.host.task() else { return returned_otherwise::<H>(stub, regs) };
    let Some(word) = context.idle_word() else { return returned_otherwise::<H>(stub, regs) };
    let section = context.open_idle(word);
    let Some(instance) = task.newest().filter(|newest| newest.stub == stub && newest.claim_newest()) else {
        context.close_idle(word, section);
        return returned_otherwise::<H>(stub, regs);
    };
    regs.set_pc(instance.real());
    task.pending.store(instance.next.load(Relaxed), Release);
    // SAFETY: inside until `close_only`.
    let ending = unsafe { instance.pool().ending() };
    // SAFETY: the call is claimed, and its data still there.
    let resume = unsafe { ending.run(context, regs, instance.data) };
    instance.release_newest();
    context.close_only(section);
    probes.host.unpin();
    resume
}

/// All returns but the usual ones, pinned already.
///
/// Whose stub it is is asked again: a host that is no variable is not looked up for the usual case.
#[inline(never)]
fn returned_otherwise<H: Host>(stub: CodeAddr, regs: &mut RegsOf<H>) -> Resume {
    probes_of::<H>(stub).returned_pinned(regs, stub)
}

/// Whose stub that is.
#[inline(always)]
fn probes_of<H: Host>(stub: CodeAddr) -> &'static Probes<H> {
    let word = chunk_base(stub).as_usize().wrapping_add(CHUNK_LEN - OWN);
    // SAFETY: a stub lies in a chunk, which is never unmapped while an instance of it is pending, and the registry
    // has put the address there.
    let chunk = unsafe { ptr::with_exposed_provenance::<usize>(word).read() };
    // SAFETY: as above.
    unsafe { &*ptr::with_exposed_provenance::<StubChunk<H>>(chunk) }.probes
}

impl<H: Host> Probes<H> {
    /// The function that every return stub ends up in, as [`Probes::detour_handlers`] are those of detours.
    pub fn return_handler() -> extern "C" fn(usize, *mut RegsOf<H>) -> Resume {
        return_from_stub::<H>
    }

    /// Follows a call from its entry, if there is an instance and the entry handler wants it. What has been done to the
    /// registers, other than the return address.
    ///
    /// Not inline: it needs more registers than a kprobe's hit should have to save. Nor does the plainest case save any for
    /// the others.
    #[inline(never)]
    pub(crate) fn enter_call(
        &self,
        context: &Context<H::Arch>,
        node: &Node<H::Arch>,
        probe: &ReturnProbe<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        if probe.entry.is_none()
            && let Some(followed) = self.follow_plainly(context, probe.pool(), regs)
        {
            if let Err(instance) = followed {
                instance.drop_unreturned();
            }
            return Resume::Unchanged;
        }
        self.enter_any_call(context, node, probe, regs)
    }

    /// As [`Probes::follow_plainly`], with the own instance of a pool whose owner the context is.
    #[inline(always)]
    pub(crate) fn follow_own<'a>(
        &self,
        own: &'a Instance<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Option<Result<(), &'a Instance<H::Arch>>> {
        let (task, entry) = self.plain_call(regs)?;
        let life = own.free_life()?;
        own.bind_own(life, entry.return_address, entry.frame, task);
        Some(self.link_call(task, ptr::null_mut(), own, regs))
    }

    /// The task and the entry of a call from the program's own text in a task with no other call pending; `None` of others.
    #[inline(always)]
    fn plain_call(&self, regs: &RegsOf<H>) -> Option<(&Task<H::Arch>, Entry)> {
        let task = self.host.task().filter(|task| task.is_idle())?;
        let entry = H::Arch::entry(regs, self.host.memory()).ok()?;
        (!self.stub_range.may_hold(entry.return_address)).then_some((task, entry))
    }

    /// Follows a call of a probe without an entry handler in the plainest case; `None` in others: a task with no other call
    /// pending, a call from the program's own text, the instance free that the context had last. An error as [`Probes::bind_call`].
    #[inline(always)]
    pub(crate) fn follow_plainly<'a>(
        &self,
        context: &Context<H::Arch>,
        pool: &'a Pool<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Option<Result<(), &'a Instance<H::Arch>>> {
        let (task, entry) = self.plain_call(regs)?;
        let instance = pool.try_take(context)?;
        Some(self.bind_call(task, ptr::null_mut(), instance, entry, entry.return_address, regs))
    }

    /// As [`Probes::enter_call`], whatever the call and the probe are.
    #[inline(never)]
    fn enter_any_call(
        &self,
        context: &Context<H::Arch>,
        node: &Node<H::Arch>,
        probe: &ReturnProbe<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let pool = probe.pool();
        let Some(task) = self.host.task() else { return pool.miss() };
        let Ok(entry) = H::Arch::entry(regs, self.host.memory()) else { return pool.miss() };
        let (sp, home) = (regs.sp(), Some(entry.return_address));
        if !task.is_idle() {
            // Calls that were left by a longjmp lie below the new one.
            self.drop_stale(task, sp, home, |instance| instance.frame() > entry.frame);
        }
        let taken = pool.take(context).or_else(|| {
            self.drop_stale(task, sp, home, |_| false);
            pool.take(context)
        });
        let Some(instance) = taken else { return pool.miss() };
        match self.follow_call(context, node, probe, task, instance, entry, regs) {
            Resume::Changed if regs.sp() != sp => Resume::Moved,
            resume => resume,
        }
    }

    /// Whether the call that has just been entered returns to the program's own text.
    pub(crate) fn is_unfollowed(&self, regs: &RegsOf<H>) -> bool {
        H::Arch::entry(regs, self.host.memory()).is_ok_and(|entry| !self.is_stub(entry.return_address))
    }

    /// Whether such a call has been followed now.
    pub(crate) fn has_followed(&self, regs: &RegsOf<H>) -> bool {
        let newest = self.host.task().and_then(Task::newest);
        let entry = H::Arch::entry(regs, self.host.memory());
        newest.is_some_and(|newest| entry.is_ok_and(|entry| entry.return_address == newest.stub))
    }

    /// Whether `at` is a stub that is handed out. The caller is inside.
    #[inline(always)]
    fn is_stub(&self, at: CodeAddr) -> bool {
        self.stub_range.may_hold(at) && self.instance_at(at).is_some()
    }

    /// Asks the entry handler, and makes the call return to the stub of `instance`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "it is a part of another function, inline")]
    fn follow_call(
        &self,
        context: &Context<H::Arch>,
        node: &Node<H::Arch>,
        probe: &ReturnProbe<H::Arch>,
        task: &Task<H::Arch>,
        instance: &Instance<H::Arch>,
        entry: Entry,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let real = entry.return_address;
        let home = if self.is_stub(real) { self.follow_chain(real) } else { real };
        let mut resume = Resume::Unchanged;
        if let Some(handler) = &probe.entry {
            let mut call = Call { regs, node, return_address: home, is_lent: false };
            context.set_current(node);
            // SAFETY: the instance is ours, its data memory free and of the handlers' layout.
            let follow = unsafe { handler.enter(&mut call, instance.data) };
            resume = Resume::of(call.is_lent);
            if follow == Follow::No {
                instance.veto();
                return resume;
            }
        }
        if let Err(instance) = self.bind_call(task, task.pending.load(Relaxed), instance, entry, home, regs) {
            instance.drop_unreturned();
        }
        resume
    }

    /// Makes the call, which ends up at `home`, return to the stub of `instance`. `older` is the task's newest pending return.
    ///
    /// # Errors
    /// The return address could not be replaced: the caller [drops](Instance::drop_unreturned) the call.
    #[inline(always)]
    fn bind_call<'a>(
        &self,
        task: &Task<H::Arch>,
        older: *mut Instance<H::Arch>,
        instance: &'a Instance<H::Arch>,
        entry: Entry,
        home: CodeAddr,
        regs: &mut RegsOf<H>,
    ) -> Result<(), &'a Instance<H::Arch>> {
        instance.bind(entry.return_address, home, entry.frame, task);
        self.link_call(task, older, instance, regs)
    }

    /// As [`Probes::bind_call`], of an instance that is bound already.
    #[inline(always)]
    fn link_call<'a>(
        &self,
        task: &Task<H::Arch>,
        older: *mut Instance<H::Arch>,
        instance: &'a Instance<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Result<(), &'a Instance<H::Arch>> {
        if H::Arch::set_return_address(regs, instance.stub, self.host.memory()).is_err() {
            return Err(instance);
        }
        instance.next.store(older, Relaxed);
        task.pending.store(ptr::from_ref(instance).cast_mut(), Release);
        instance.calls.rise_alone();
        Ok(())
    }

    /// Brings a call home that has returned to `stub`: all calls that share the return address, innermost
    /// first.
    #[inline(never)]
    fn returned_pinned(&self, regs: &mut RegsOf<H>, stub: CodeAddr) -> Resume {
        let context = self.host.context();
        let guard = context.is_none().then(|| self.anonymous());
        let inside = context.map(Context::open);
        let was_outside = inside.as_ref().is_some_and(Inside::was_outside);
        let may_call = was_outside && context.is_some_and(|context| context.depth() == 0);
        let home = self.follow_stubs(stub);
        let mut at = stub;
        let mut is_lost = home == stub;
        if !is_lost {
            regs.set_pc(home);
        }
        while let Some(instance) = self.instance_at(at) {
            let real = instance.real();
            if !instance.claim() {
                is_lost = true;
                break;
            }
            self.finish_call(context.filter(|_| may_call), instance, regs);
            at = real;
        }
        drop((inside, guard));
        if is_lost {
            self.host.notice(Notice::LostReturn { stub: at });
            self.host.stop(regs);
        }
        self.host.unpin();
        Resume::Changed
    }

    /// Ends one claimed call: its exit handler, if `context` is given and it has one, and its instance.
    fn finish_call(
        &self,
        context: Option<&Context<H::Arch>>,
        instance: &Instance<H::Arch>,
        regs: &mut RegsOf<H>,
    ) {
        let owner = instance.task.load(Relaxed);
        let is_owner = self.host.task().is_some_and(|task| ptr::eq(task, owner));
        // SAFETY: this task is the owner, so it is there.
        if let Some(task) = unsafe { owner.as_ref() }.filter(|_| is_owner) {
            self.unlink(task, instance, regs.sp());
        }
        let pool = instance.pool();
        if let Some(context) = context {
            // SAFETY: the caller is inside.
            let ending = unsafe { pool.ending() };
            // SAFETY: the call is claimed, and its data still there.
            unsafe { ending.run(context, regs, instance.data) };
        } else {
            // SAFETY: a node is freed after a grace period that began when the pool had forgotten it; we are inside.
            if let Some(node) = unsafe { follow(&pool.node).as_ref() } {
                node.missed.rise();
            }
            // SAFETY: as above.
            unsafe { instance.drop_data() };
        }
        if is_owner || !instance.leave_to_owner() {
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

    /// Walks the task's pending returns, newest first, until `is_end`; clears away those that have returned elsewhere, and
    /// drops those that certainly will not return (RET_7).
    ///
    /// `home` is the return address of the call that is being entered, if one is: where it is a stub, that call is alive
    /// although the stub lies on no stack (it is in the link register, after a tail call or another return probe).
    fn drop_stale(
        &self,
        task: &Task<H::Arch>,
        sp: usize,
        home: Option<CodeAddr>,
        is_end: impl Fn(&Instance<H::Arch>) -> bool,
    ) {
        let mut link = &task.pending;
        // The return address that the last call kept stands for: a call whose stub it is will be returned to through it.
        let mut next_home = home;
        loop {
            // SAFETY: what is on the task's list is not freed.
            let Some(instance) = (unsafe { link.load(Relaxed).as_ref() }) else { return };
            if is_end(instance) {
                return;
            }
            let will_not_return = || {
                instance.is_pending()
                    && next_home != Some(instance.stub)
                    && !H::Arch::may_return(instance.frame(), instance.stub, sp, self.host.memory())
            };
            if instance.has_returned() {
                link.store(instance.next.load(Relaxed), Release);
                instance.release();
            } else if will_not_return() && instance.claim() {
                link.store(instance.next.load(Relaxed), Release);
                instance.pool().abandoned.rise();
                // SAFETY: the call is claimed, and its data still there.
                unsafe { instance.drop_data() };
                instance.release();
            } else {
                next_home = Some(instance.real());
                link = &instance.next;
            }
        }
    }

    /// Gives back the instances of a task that ends: its calls will not return (RET_7). The host calls it in or
    /// after the task's last moment of probed code.
    pub fn task_exit(&self, task: &Task<H::Arch>) {
        let _guard = self.anonymous();
        loop {
            // SAFETY: what is on the task's list is not freed.
            let Some(instance) = (unsafe { task.pending.load(Relaxed).as_ref() }) else { return };
            task.pending.store(instance.next.load(Relaxed), Relaxed);
            if instance.claim() {
                // SAFETY: the call is claimed, and its data still there.
                unsafe { instance.drop_data() };
                instance.release();
            } else if instance.has_returned() || !instance.disown() {
                instance.release();
            }
        }
    }

    /// Gives back those of a task's instances whose calls lie below `sp`, the running stack pointer, or certainly will not
    /// return: for a task that is about to end and has left most of its calls without returning, while the functions
    /// that end it may still return. Whether none is left, so that [`Probes::task_exit`] is not needed any more.
    pub fn task_exiting(&self, task: &Task<H::Arch>, sp: usize) -> bool {
        let _guard = self.anonymous();
        let mut link = &task.pending;
        // SAFETY: what is on the task's list is not freed.
        while let Some(instance) = unsafe { link.load(Relaxed).as_ref() } {
            if instance.has_returned() {
                link.store(instance.next.load(Relaxed), Release);
                instance.release();
            } else if instance.frame() < sp && instance.claim() {
                link.store(instance.next.load(Relaxed), Release);
                instance.pool().abandoned.rise();
                // SAFETY: the call is claimed, and its data still there.
                unsafe { instance.drop_data() };
                instance.release();
            } else {
                link = &instance.next;
            }
        }
        self.drop_stale(task, sp, None, |_| false);
        task.is_idle()
    }

    /// The return address that `at` stands for, if it is a return stub of ours (RET_8): what an unwinder shows, and
    /// goes on with. Takes no lock; may be called from handlers and from signal handlers.
    pub fn real_return_address(&self, at: CodeAddr) -> Option<CodeAddr> {
        let _guard = self.anonymous();
        let home = self.follow_stubs(at);
        (home != at).then_some(home)
    }

    /// Where a return to `at` ends up: `at` itself, unless it is a stub. The caller is inside.
    #[inline(always)]
    fn follow_stubs(&self, at: CodeAddr) -> CodeAddr {
        if self.stub_range.may_hold(at) { self.follow_chain(at) } else { at }
    }

    /// As [`Probes::follow_stubs`], where `at` may be a stub.
    #[inline(never)]
    fn follow_chain(&self, at: CodeAddr) -> CodeAddr {
        let mut home = at;
        for _ in 0..MAX_CHAIN {
            match self.instance_at(home) {
                Some(instance) if instance.is_pending() => home = instance.real(),
                _ => break,
            }
        }
        home
    }

    /// The instance whose stub is at `at`. The caller is inside.
    fn instance_at(&self, at: CodeAddr) -> Option<&Instance<H::Arch>> {
        // SAFETY: the caller is inside.
        let section = unsafe { Section::assume() };
        self.stub_chunks.find(chunk_base(at).as_usize(), section)?.instance(at)
    }
}
