//! A hit by jump: what the calls in a detour do.
//!
//! The jump leads to the place's [`Detour`]: a call of the backend's trampoline, which saves the registers and calls
//! [`jumped`]; then copies of the instructions that the jump displaces; then a jump back.
//!
//! Post handlers see what the first instruction has done. One that is simulated at a trap is simulated here, too, and its
//! copy does it again: nothing comes between. Behind the copy of another one the detour calls the trampoline once more,
//! for [`copied`]; meanwhile a frame stands for the hit, as for a step, and the context stays pinned.
//!
//! Where a displaced instruction other than the first starts, the jump has the breakpoint's bytes. So a context that
//! arrives there, by whatever way, traps, and goes on in the copy ([`Probes::in_detour`]).

use super::{Trap, Walk, count_missed};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Jumps, Method, NativeJumps, Regs, Resume, TrampolineHandler};
use crate::state::context::{Context, Section, Wait};
use crate::state::counter::HitCounter;
use crate::state::detour::Detour;
use crate::state::host::{Host, JumpsOf, RegsOf};
use crate::state::instance::Instance;
use crate::state::owner::NOBODYS;
use crate::state::point::{HAS_POST, Handlers, Node, Point};
use crate::state::pool::Pool;
use crate::state::probes::Probes;
use crate::state::slots::chunk_base;
use crate::state::text::Standing;
use crate::sync::{Acquire, Relaxed, follow};
use core::marker::PhantomData;
use core::ptr;

/// [`jumped`] as a trampoline's handler.
pub(crate) struct Jumped<H>(PhantomData<H>);

impl<H: Host> TrampolineHandler<RegsOf<H>> for Jumped<H> {
    const FUNCTION: Handler<H> = jumped::<H>;
}

/// [`entered`] as a trampoline's handler.
pub(crate) struct Entered<H, const FOLLOWS: bool>(PhantomData<H>);

impl<H: Host, const FOLLOWS: bool> TrampolineHandler<RegsOf<H>> for Entered<H, FOLLOWS> {
    const FUNCTION: Handler<H> = entered::<H, FOLLOWS>;
}

/// [`copied`] as a trampoline's handler.
pub(crate) struct Copied<H>(PhantomData<H>);

impl<H: Host> TrampolineHandler<RegsOf<H>> for Copied<H> {
    const FUNCTION: Handler<H> = copied::<H>;
}

/// The registers are the second argument, as they are of the probes' handlers.
type Handler<H> = extern "C" fn(usize, *mut RegsOf<H>) -> Resume;

/// What every detour of `Probes<H>` leads to, by way of the backend's trampoline.
///
/// The usual case is one kprobe that has a pre handler alone: it needs no registers but what the handler is called with, and
/// whatever else may be is behind calls at the end.
#[inline(always)]
extern "C" fn jumped<H: Host>(detour: usize, regs: *mut RegsOf<H>) -> Resume {
    // SAFETY: the trampoline hands on the detour's word, the address that the registry has put there; detours are
    // kept for good.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: the trampoline gives the registers it has saved, which nobody else uses meanwhile.
    let regs = unsafe { &mut *regs };
    let host = &Probes::of(detour.program).host;
    host.pin();
    let Some(context) = host.context() else { return jumped_busy(detour, regs) };
    let Some(word) = context.idle_word() else { return jumped_busy(detour, regs) };
    let section = context.open_idle(word);
    let hits = follow(&detour.plain);
    // SAFETY: the registry clears the pointer before it waits and frees the node, and this is inside.
    if !unsafe { &*hits }.try_rise_alone(context) {
        return jumped_shared(detour, regs, section);
    }
    // SAFETY: a probe's, since it has counted.
    unsafe { run_plain(host, hits, context, section, regs) }
}

/// As [`jumped`] from where the context is inside, where it is not the counter's first one.
#[inline(never)]
fn jumped_shared<H: Host>(detour: &Detour<H>, regs: &mut RegsOf<H>, section: Section) -> Resume {
    let probes = Probes::of(detour.program);
    let Some(context) = probes.host.context() else {
        section.hand_on();
        return jumped_busy(detour, regs);
    };
    let hits = follow(&detour.plain);
    // SAFETY: as in `jumped`.
    if !unsafe { &*hits }.try_rise_shared(context, &probes.shares) {
        return jumped_idle(detour, regs, context, section);
    }
    // SAFETY: a probe's, since it has counted.
    unsafe { run_plain(&probes.host, hits, context, section, regs) }
}

/// Calls the pre handler of the probe that has counted the hit, and ends it.
///
/// # Safety
/// The counter is that of a probe with a pre handler and nothing else, and has counted in this section.
#[inline(always)]
unsafe fn run_plain<H: Host>(
    host: &H,
    hits: *const HitCounter,
    context: &Context<H::Arch>,
    section: Section,
    regs: &mut RegsOf<H>,
) -> Resume {
    // SAFETY: the counter is a node's, which has counted in this section: it is not freed before the section ends.
    let node = unsafe { &*Node::<H::Arch>::of_counter(hits) };
    let Handlers::Kprobe { pre: Some(pre), .. } = &node.handlers else {
        // SAFETY: `run_plain` is promised a probe with a pre handler.
        unsafe { core::hint::unreachable_unchecked() }
    };
    context.set_current(node);
    let resume = pre.call(regs, node.known());
    leave(host, context, section, resume)
}

/// As [`jumped`], where a return probe without an entry handler is the only probe: no handler is called. `FOLLOWS`: its
/// [`Kind::follows`](crate::state::detour::Kind::follows).
#[inline(always)]
extern "C" fn entered<H: Host, const FOLLOWS: bool>(detour: usize, regs: *mut RegsOf<H>) -> Resume {
    // SAFETY: as in `jumped`.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: as in `jumped`.
    let regs = unsafe { &mut *regs };
    let host = &Probes::of(detour.program).host;
    host.pin();
    let Some(context) = host.context() else { return jumped_busy(detour, regs) };
    let Some(word) = context.idle_word() else { return jumped_busy(detour, regs) };
    let section = context.open_idle(word);
    let owner = follow(&detour.own);
    // SAFETY: as in `jumped`.
    if !unsafe { &*owner }.is_open_to(context) {
        return entered_shared::<H, FOLLOWS>(detour, regs, section);
    }
    // SAFETY: a pool's, since it has an owner.
    let own = unsafe { &*Instance::<H::Arch>::of_owner(owner) };
    // Calls at the end only: no register has to be saved.
    match Probes::of(detour.program).enter_by_owner(own, regs) {
        Some(Ok(())) => {}
        Some(Err(instance)) => return drop_entered(host, context, section, instance),
        None => return jumped_idle(detour, regs, context, section),
    }
    context.close_only(section);
    host.unpin();
    if FOLLOWS { Resume::Followed } else { Resume::Unchanged }
}

/// As [`entered`] from where the context is inside, where it does not own an instance.
#[inline(never)]
fn entered_shared<H: Host, const FOLLOWS: bool>(
    detour: &Detour<H>,
    regs: &mut RegsOf<H>,
    section: Section,
) -> Resume {
    let probes = Probes::of(detour.program);
    let Some(context) = probes.host.context() else {
        section.hand_on();
        return jumped_busy(detour, regs);
    };
    let owner = follow(&detour.own);
    if ptr::eq(owner, &raw const NOBODYS) {
        return jumped_idle(detour, regs, context, section);
    }
    // SAFETY: a pool's, inside.
    let pool = Pool::of(unsafe { &*Instance::<H::Arch>::of_owner(owner) });
    // SAFETY: as above.
    let probe = unsafe { pool.ends.probe.get() };
    if probe.map(Node::of).is_none_or(Node::is_silent) {
        return jumped_idle(detour, regs, context, section);
    }
    match probes.enter_plain(context, pool, regs) {
        Some(Ok(())) => {}
        Some(Err(instance)) => return drop_entered(&probes.host, context, section, instance),
        None => return jumped_idle(detour, regs, context, section),
    }
    context.close_only(section);
    probes.host.unpin();
    if FOLLOWS { Resume::Followed } else { Resume::Unchanged }
}

/// The end of a hit whose call cannot be followed after all.
#[cold]
#[inline(never)]
fn drop_entered<H: Host>(
    host: &H,
    context: &Context<H::Arch>,
    section: Section,
    instance: &Instance<H::Arch>,
) -> Resume {
    instance.drop_unreturned();
    leave(host, context, section, Resume::Unchanged)
}

/// A hit that is not the usual case: the next one is that there is one return probe, and something to be done first.
///
/// The arguments are where the trampoline has put them, and where the probes are is asked again: a host that is no variable is
/// not looked up for the usual case.
#[inline(never)]
fn jumped_idle<H: Host>(
    detour: &Detour<H>,
    regs: &mut RegsOf<H>,
    context: &Context<H::Arch>,
    section: Section,
) -> Resume {
    let probes = Probes::of(detour.program);
    let point = probes.point_of(detour, &section);
    let head = point.and_then(Point::newest);
    let (Some(point), Some(head)) = (point, head) else {
        return leave(&probes.host, context, section, Resume::Unchanged);
    };
    if let Handlers::Return(probe) = &head.handlers
        && head.next.load(Relaxed).is_null()
        && !head.is_silent()
    {
        let may_follow = detour.kind.follows && probes.is_unfollowed(regs);
        let resume = match probes.enter_call(context, head, probe, regs) {
            Resume::Unchanged if may_follow && probes.has_followed(regs) => Resume::Followed,
            resume => resume,
        };
        return leave(&probes.host, context, section, resume);
    }
    let resume = probes.jumped_many(context, detour, point, head, regs);
    leave(&probes.host, context, section, resume)
}

/// A nested hit, or one where there is no room for another context.
#[cold]
#[inline(never)]
fn jumped_busy<H: Host>(detour: &Detour<H>, regs: &mut RegsOf<H>) -> Resume {
    let probes = Probes::of(detour.program);
    let mut resume = Resume::Unchanged;
    match probes.host.context() {
        Some(context) => {
            let inside = context.open();
            probes.miss_detour(detour, inside.section());
            // Behind the copy is a call for the frame's owner, which this hit has come in between: not for this one.
            if let Some(point) = probes.between(context, detour) {
                let _ = probes.execute_bare(point, regs);
                resume = Resume::Redirected;
            }
        }
        None => {
            let inside = probes.anonymous();
            probes.miss_detour(detour, inside.section());
        }
    }
    probes.host.unpin();
    resume
}

/// The end of a hit by jump.
#[inline(always)]
fn leave<H: Host>(host: &H, context: &Context<H::Arch>, section: Section, resume: Resume) -> Resume {
    context.set_current(ptr::null());
    context.close_only(section);
    host.unpin();
    resume
}

/// What the second call in a detour leads to, as [`jumped`]; `word` is the address of the detour's own word for it.
#[inline(always)]
extern "C" fn copied<H: Host>(word: usize, regs: *mut RegsOf<H>) -> Resume {
    let detour = word.wrapping_sub(Detour::<H>::POST_WORD);
    // SAFETY: as in `jumped`.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: as in `jumped`.
    let regs = unsafe { &mut *regs };
    let probes = Probes::of(detour.program);
    probes.host.pin();
    let resume = probes.after_copy(detour, regs);
    probes.host.unpin();
    resume
}

impl<H: Host> Probes<H> {
    /// The functions that detours lead to, by way of the backend's trampolines and, on some, its
    /// [`handler`](crate::arch::NativeArch::handler): for checks of what the hit path reaches.
    #[doc(hidden)]
    pub fn detour_handlers() -> [extern "C" fn(usize, *mut RegsOf<H>) -> Resume; 4] {
        [jumped::<H>, entered::<H, false>, entered::<H, true>, copied::<H>]
    }

    /// A hit of several probes of any kind.
    #[inline(never)]
    fn jumped_many(
        &self,
        context: &Context<H::Arch>,
        detour: &Detour<H>,
        point: &Point<H::Arch>,
        head: &Node<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let wants_post = point.is(HAS_POST);
        if wants_post && point.method != Method::Simulate && !detour.kind.calls_post {
            // The jump had gone before the post handler came: the hit is one of the breakpoint that stands there now.
            return Resume::Redirected;
        }
        head.hits.claim(context, &self.shares);
        let sp = regs.sp();
        let may_follow = detour.kind.follows && self.is_unfollowed(regs);
        match self.run_pre(context, point, head, regs) {
            Walk::Ran if wants_post && self.post_of_jump(context, point, head.generation, sp, regs) => {
                Resume::Redirected
            }
            Walk::Ran if regs.sp() != sp => Resume::Moved,
            Walk::Ran if may_follow && self.has_followed(regs) => Resume::ChangedFollowed,
            Walk::Ran => Resume::Changed,
            Walk::Redirected | Walk::InJprobe => Resume::Redirected,
        }
    }

    /// Calls the post handlers of a point whose instruction is simulated; whether they have changed something: then the
    /// registers are those after the instruction. Of another one, begins the hit's frame for [`Probes::after_copy`];
    /// also where the stack pointer is below `sp`, what it was at the place, for [`Probes::run_lowered`].
    fn post_of_jump(
        &self,
        context: &Context<H::Arch>,
        point: &Point<H::Arch>,
        newest: u32,
        sp: usize,
        regs: &mut RegsOf<H>,
    ) -> bool {
        regs.set_pc(point.place);
        let is_simulated = point.method == Method::Simulate;
        // What it pushes then would lie on the stack that this runs on.
        let is_lowered = is_simulated && regs.sp() < sp;
        if is_lowered || !is_simulated {
            let wait = if is_lowered { Wait::Lowered } else { Wait::Copy };
            // SAFETY: this is the context that is running.
            unsafe { context.push(wait, point, newest, 0, Default::default()) };
            self.host.pin();
            if !is_lowered {
                self.host.enter_copy();
            }
            return is_lowered;
        }
        let before = *regs;
        // Where it faults, the copy does, too.
        if H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()).is_err() {
            return false;
        }
        let after = *regs;
        self.run_posts(context, point, newest, regs);
        let has_changed = *regs != after;
        if !has_changed {
            *regs = before;
        }
        has_changed
    }

    /// The first copy of a detour has run: the post handlers are called.
    fn after_copy(&self, detour: &Detour<H>, regs: &mut RegsOf<H>) -> Resume {
        let Some(context) = self.host.context() else { return Resume::Unchanged };
        let _inside = context.open();
        let mut resume = Resume::Unchanged;
        if let Some((point, newest)) = self.end_copy(context, detour) {
            let next = detour.place.wrapping_add(usize::from(point.insn_len));
            regs.set_pc(next);
            let sp = regs.sp();
            self.run_posts(context, point, newest, regs);
            resume = match regs.pc() == next {
                true if regs.sp() == sp => Resume::Changed,
                true => Resume::Moved,
                false => Resume::Redirected,
            };
        }
        resume
    }

    /// Takes the frame of the copy that runs first in `detour` off the context, which is inside, if it stands for
    /// that. The point, and the newest probe that saw the hit.
    pub(crate) fn end_copy(
        &self,
        context: &Context<H::Arch>,
        detour: &Detour<H>,
    ) -> Option<(&Point<H::Arch>, u32)> {
        let point = self.between(context, detour).filter(|_| detour.kind.calls_post)?;
        // SAFETY: this is the context that is running.
        let popped = unsafe { context.pop() }?;
        self.host.leave_copy();
        self.host.unpin();
        Some((point, popped.newest))
    }

    /// The point of the innermost active hit, if that waits for the end of a copy of the instruction at the detour's
    /// place. The context is inside.
    fn between(&self, context: &Context<H::Arch>, detour: &Detour<H>) -> Option<&Point<H::Arch>> {
        let Some((Wait::Copy, point)) = context.top() else { return None };
        // SAFETY: a point that stands in a frame is not freed, and then the context is inside.
        unsafe { point.as_ref() }.filter(|point| point.place == detour.place)
    }

    /// A nested hit, or one for which there is no room.
    fn miss_detour(&self, detour: &Detour<H>, section: &Section) {
        if let Some(point) = self.point_of(detour, section) {
            count_missed(point);
        }
    }

    /// The point whose jump has led here. The jump may have been taken out of text meanwhile, with the probe still
    /// there: then the hit is none the less one.
    #[inline(always)]
    fn point_of<'g>(&self, detour: &Detour<H>, section: &'g Section) -> Option<&'g Point<H::Arch>> {
        match detour.point(section) {
            None => self.points.find(detour.place.as_usize(), section),
            point => point,
        }
    }

    /// A breakpoint that belongs to detours: inside a jump, or the trap that takes all registers.
    pub(crate) fn in_detour(&self, at: CodeAddr, regs: &mut RegsOf<H>, section: &Section) -> Option<Trap> {
        if let Some(jumps) = H::Arch::JUMPS.filter(|jumps| at == jumps.detour_resume_trap()) {
            let kept = jumps.detour_regs(regs);
            // SAFETY: only the trampoline traps there, with the address of the registers that it has saved.
            let kept = unsafe { ptr::with_exposed_provenance::<RegsOf<H>>(kept).read() };
            jumps.resume_with(regs, kept);
            return Some(self.run_lowered(regs));
        }
        let copy = self.copy_of_displaced(at, section)?;
        regs.set_pc(copy);
        Some(Trap::Handled)
    }

    /// In the trap that has taken all registers: simulates the instruction of a hit that waits for that, and calls its
    /// post handlers. The caller is inside.
    fn run_lowered(&self, regs: &mut RegsOf<H>) -> Trap {
        let waiting = self.host.context().map(|context| (context, context.top()));
        let Some((context, Some((Wait::Lowered, point)))) = waiting else { return Trap::Handled };
        // SAFETY: a point that stands in a frame is not freed, and then the context is inside.
        let Some(point) = (unsafe { point.as_ref() }) else { return Trap::Handled };
        // SAFETY: this is the context that is running.
        let newest = unsafe { context.pop() }.map_or(0, |popped| popped.newest);
        self.host.unpin();
        if let Err(fault) = H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()) {
            return Trap::Fault(fault);
        }
        self.run_posts(context, point, newest, regs);
        Trap::Handled
    }

    /// Where the instruction at `at`, which a jump that stands in text displaces, is copied.
    fn copy_of_displaced(&self, at: CodeAddr, section: &Section) -> Option<CodeAddr> {
        if JumpsOf::<H>::JUMP_LEN <= H::Arch::BREAKPOINT.len() {
            return None;
        }
        (H::Arch::INSN_ALIGN..JumpsOf::<H>::JUMP_LEN).step_by(H::Arch::INSN_ALIGN).find_map(|distance| {
            let place = at.wrapping_offset(-(distance as isize));
            let point = self.points.find(place.as_usize(), section)?;
            let detour = Standing::<H>::of(point).detour()?;
            let index = detour.displaced.starts().position(|start| start == distance)?;
            Some(detour.copy(index))
        })
    }

    /// The detour that `at` lies in, and the address of the instruction whose copy stands there.
    pub(crate) fn detour_at(&self, at: CodeAddr, section: &Section) -> Option<(&Detour<H>, CodeAddr)> {
        let chunk = self.detour_chunks.find(chunk_base(at).as_usize(), section)?;
        let [owner] = chunk.granules(at, 1)? else { return None };
        // SAFETY: detours are kept for good.
        let detour = unsafe { owner.load(Acquire).as_ref() }?;
        let original = detour.original(at)?;
        Some((detour, detour.place.wrapping_add(original)))
    }
}
