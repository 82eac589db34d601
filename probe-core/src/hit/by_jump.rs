//! A hit by jump: the calls in a detour.
//!
//! The jump leads to the place's [`Detour`]: a call of the backend's trampoline, which saves the registers
//! and calls [`jumped`]; then copies of the instructions that the jump displaces; then a jump back.
//!
//! Post handlers see the effect of the first instruction. An instruction that a trap would simulate is
//! simulated here, too, and its copy repeats the effect: nothing comes between. Behind the copy of any other
//! instruction the detour calls the trampoline once more, for [`copied`]. Between the two calls the hit has a
//! frame, as a step has, which owns its pin.
//!
//! Where a displaced instruction other than the first starts, the jump has the breakpoint's bytes. So a
//! context that arrives there, in whatever way, traps, and goes on in the copy ([`Probes::in_detour`]).

use super::{Outcome, Trap, count_missed};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Jumps, Method, NativeArch, NativeJumps, Regs, Resume, TrampolineHandler};
use crate::state::context::active::TopPinned;
use crate::state::context::{Here, Running};
use crate::state::detour::Detour;
use crate::state::frame::PinnedHit;
use crate::state::handler::Pre;
use crate::state::host::{Host, JumpsOf, RegsOf, running};
use crate::state::pinned::Pinned;
use crate::state::point::{HAS_POST, Handlers, Node, Point};
use crate::state::probes::Probes;
use crate::state::section::{Section, Stay};
use crate::state::text::Standing;
use crate::sync::Relaxed;
use core::marker::PhantomData;
use core::ptr;

/// [`jumped`] as a trampoline's handler.
pub(crate) struct Jumped<H>(PhantomData<H>);

impl<H: Host> TrampolineHandler<RegsOf<H>> for Jumped<H> {
    const FUNCTION: Handler<H> = jumped::<H>;
}

/// [`jumped_any`] as a trampoline's handler.
pub(crate) struct JumpedAny<H>(PhantomData<H>);

impl<H: Host> TrampolineHandler<RegsOf<H>> for JumpedAny<H> {
    const FUNCTION: Handler<H> = jumped_any::<H>;
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

/// The registers are the second argument, as with the probes' handlers.
type Handler<H> = extern "C" fn(usize, *mut RegsOf<H>) -> Resume;

/// The function of every detour of `Probes<H>`, called by the backend's trampoline.
///
/// The usual case is one kprobe with a pre handler alone. It needs no registers but the handler's arguments,
/// so all other cases are behind calls at the end.
#[inline(always)]
extern "C" fn jumped<H: Host>(detour: usize, regs: *mut RegsOf<H>) -> Resume {
    // SAFETY: the trampoline hands on the detour's word, the address that the registry has put there; detours
    // are kept for good.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: the trampoline gives the registers it has saved, which nobody else uses meanwhile.
    let regs = unsafe { &mut *regs };
    let host = &Probes::of(detour.program).host;
    let pinned = Pinned::begin(host);
    let Some(context) = running(host) else { return jumped_busy(detour, regs, pinned) };
    let Some(word) = context.idle_word() else { return jumped_busy(detour, regs, pinned) };
    let stay = context.open_idle(word);
    let here = context.within(stay.section());
    let Some((node, pre)) = detour.plain(here.section()).count_alone(here.identity()) else {
        return jumped_shared(detour, regs, stay, pinned);
    };
    let resume = run_plain(here, node, pre, regs);
    leave(host, context, stay, pinned, resume)
}

/// As [`jumped`], with the context inside, if the counter's first context is another one.
#[inline(never)]
fn jumped_shared<H: Host>(detour: &Detour<H>, regs: &mut RegsOf<H>, stay: Stay, pinned: Pinned) -> Resume {
    let probes = Probes::of(detour.program);
    let Some(context) = running(&probes.host) else {
        stay.hand_on();
        return jumped_busy(detour, regs, pinned);
    };
    let here = context.within(stay.section());
    let Some((node, pre)) =
        detour.plain(here.section()).count_shared(here.identity(), probes.common.shares())
    else {
        return jumped_idle(detour, regs, context, stay, pinned);
    };
    let resume = run_plain(here, node, pre, regs);
    leave(&probes.host, context, stay, pinned, resume)
}

/// As [`jumped`], where that would look for the only pre handler in vain: several probes, post handlers, a
/// return probe with an entry handler.
extern "C" fn jumped_any<H: Host>(detour: usize, regs: *mut RegsOf<H>) -> Resume {
    // SAFETY: as in `jumped`.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: as in `jumped`.
    let regs = unsafe { &mut *regs };
    let host = &Probes::of(detour.program).host;
    let pinned = Pinned::begin(host);
    let Some(context) = running(host) else { return jumped_busy(detour, regs, pinned) };
    let Some(word) = context.idle_word() else { return jumped_busy(detour, regs, pinned) };
    let stay = context.open_idle(word);
    jumped_idle(detour, regs, context, stay, pinned)
}

/// Calls the pre handler of the probe that has counted the hit.
#[inline(always)]
fn run_plain<A: NativeArch>(here: Here<'_, A>, node: &Node<A>, pre: &Pre<A>, regs: &mut A::Regs) -> Resume {
    here.set_current(node);
    pre.call(regs, node.known())
}

/// As [`jumped`], for a return probe without an entry handler as the only probe: no handler is called.
/// `FOLLOWS` is its [`Service::follows`](crate::state::detour::Service::follows).
#[inline(always)]
extern "C" fn entered<H: Host, const FOLLOWS: bool>(detour: usize, regs: *mut RegsOf<H>) -> Resume {
    // SAFETY: as in `jumped`.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: as in `jumped`.
    let regs = unsafe { &mut *regs };
    let host = &Probes::of(detour.program).host;
    let pinned = Pinned::begin(host);
    let Some(context) = running(host) else { return jumped_busy(detour, regs, pinned) };
    let Some(word) = context.idle_word() else { return jumped_busy(detour, regs, pinned) };
    let stay = context.open_idle(word);
    let here = context.within(stay.section());
    let Some(own) = detour.followed(here.section()).own(here.identity()) else {
        return entered_shared::<H, FOLLOWS>(detour, regs, stay, pinned);
    };
    // Calls at the end only: no register has to be saved.
    match Probes::of(detour.program).enter_by_owner(own, regs) {
        Some(Ok(())) => {}
        Some(Err(instance)) => {
            instance.drop_unreturned();
            return leave(host, context, stay, pinned, Resume::Unchanged);
        }
        None => return jumped_idle(detour, regs, context, stay, pinned),
    }
    context.close_only(stay);
    pinned.end(host);
    if FOLLOWS { Resume::Followed } else { Resume::Unchanged }
}

/// As [`entered`], with the context inside, if it owns no instance.
#[inline(never)]
fn entered_shared<H: Host, const FOLLOWS: bool>(
    detour: &Detour<H>,
    regs: &mut RegsOf<H>,
    stay: Stay,
    pinned: Pinned,
) -> Resume {
    let probes = Probes::of(detour.program);
    let Some(context) = running(&probes.host) else {
        stay.hand_on();
        return jumped_busy(detour, regs, pinned);
    };
    let here = context.within(stay.section());
    let Some(pool) = detour.followed(here.section()).pool() else {
        return jumped_idle(detour, regs, context, stay, pinned);
    };
    if pool.ends.probe.get(here.section()).map(Node::of).is_none_or(Node::is_silent) {
        return jumped_idle(detour, regs, context, stay, pinned);
    }
    match probes.enter_plain(here, pool, regs) {
        Some(Ok(())) => {}
        Some(Err(instance)) => {
            instance.drop_unreturned();
            return leave(&probes.host, context, stay, pinned, Resume::Unchanged);
        }
        None => return jumped_idle(detour, regs, context, stay, pinned),
    }
    context.close_only(stay);
    pinned.end(&probes.host);
    if FOLLOWS { Resume::Followed } else { Resume::Unchanged }
}

/// A hit that is not the usual case. The most frequent of these is one return probe with something to be done
/// first.
///
/// The arguments stay where the trampoline has put them, and the address of the probes is looked up again, so
/// that the usual case need not do it for a host that is a constant.
#[inline(never)]
fn jumped_idle<H: Host>(
    detour: &Detour<H>,
    regs: &mut RegsOf<H>,
    context: Running<'_, H::Arch>,
    stay: Stay,
    pinned: Pinned,
) -> Resume {
    let probes = Probes::of(detour.program);
    let resume = probes.jumped_inside(context.within(stay.section()), detour, regs);
    leave(&probes.host, context, stay, pinned, resume)
}

/// A nested hit, or one where there is no room for another context.
#[cold]
#[inline(never)]
fn jumped_busy<H: Host>(detour: &Detour<H>, regs: &mut RegsOf<H>, pinned: Pinned) -> Resume {
    let probes = Probes::of(detour.program);
    let mut resume = Resume::Unchanged;
    match running(&probes.host) {
        Some(context) => {
            let inside = context.open();
            let here = inside.here();
            probes.miss_detour(detour, here.section());
            // Behind the copy is a call for the frame's owner, which this hit has come in between: not for
            // this one.
            if let Some(top) = between(here, detour) {
                let _ = probes.execute_bare(top.point, regs);
                resume = Resume::Redirected;
            }
        }
        None => {
            let inside = probes.anonymous();
            probes.miss_detour(detour, inside.section());
        }
    }
    pinned.end(&probes.host);
    resume
}

/// The end of a hit by jump.
#[inline(always)]
fn leave<H: Host>(
    host: &H,
    context: Running<'_, H::Arch>,
    stay: Stay,
    pinned: Pinned,
    resume: Resume,
) -> Resume {
    context.set_current(ptr::null());
    context.close_only(stay);
    pinned.end(host);
    resume
}

/// The function of the second call in a detour, called as [`jumped`]; `word` is the address of the detour's
/// own word for it.
#[inline(always)]
extern "C" fn copied<H: Host>(word: usize, regs: *mut RegsOf<H>) -> Resume {
    let detour = word.wrapping_sub(Detour::<H>::POST_WORD);
    // SAFETY: as in `jumped`.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: as in `jumped`.
    let regs = unsafe { &mut *regs };
    let probes = Probes::of(detour.program);
    Pinned::during(&probes.host, || probes.after_copy(detour, regs))
}

/// The innermost active hit, if it waits for the end of a copy of the instruction at the detour's place.
fn between<'s, H: Host>(here: Here<'s, H::Arch>, detour: &Detour<H>) -> Option<TopPinned<'s, H::Arch>> {
    here.top_pinned(PinnedHit::Copy).filter(|top| top.point.place == detour.place)
}

impl<H: Host> Probes<H> {
    /// The functions that trampolines call for detours, on some backends through a
    /// [`handler`](crate::arch::NativeArch::handler) of theirs: for checks of the hit path's code.
    #[doc(hidden)]
    pub fn detour_handlers() -> [extern "C" fn(usize, *mut RegsOf<H>) -> Resume; 5] {
        [jumped::<H>, jumped_any::<H>, entered::<H, false>, entered::<H, true>, copied::<H>]
    }

    /// The hit itself; then it is to be left.
    #[inline(always)]
    fn jumped_inside(&self, here: Here<'_, H::Arch>, detour: &Detour<H>, regs: &mut RegsOf<H>) -> Resume {
        let Some(point) = self.point_of(detour, here.section()) else { return Resume::Unchanged };
        let Some(head) = point.newest() else { return Resume::Unchanged };
        if let Handlers::Return(probe) = &head.handlers
            && head.next.load(Relaxed).is_null()
            && !head.is_silent()
        {
            let may_follow = detour.service.follows && self.is_unfollowed(regs, here.section());
            return match self.enter_call(here, head, probe, regs) {
                Resume::Unchanged if may_follow && self.has_followed(regs, here.section()) => {
                    Resume::Followed
                }
                resume => resume,
            };
        }
        let is_kprobe = |node: &Node<_>| matches!(node.handlers, Handlers::Kprobe { .. });
        if !point.is(HAS_POST) && point.nodes().all(is_kprobe) {
            return self.jumped_kprobes(here, head, regs);
        }
        self.jumped_many(here, detour, point, head, regs)
    }

    /// A hit of kprobes without post handlers. Each pre handler says what it has done to the registers, so
    /// those that none has touched need not be loaded.
    fn jumped_kprobes(&self, here: Here<'_, H::Arch>, head: &Node<H::Arch>, regs: &mut RegsOf<H>) -> Resume {
        let mut resume = Resume::Unchanged;
        let mut next = Some(head);
        if head.behind().is_none() {
            head.hits.claim(here.identity(), self.common.shares());
        }
        while let Some(node) = next {
            next = node.behind();
            let Handlers::Kprobe { pre, .. } = &node.handlers else { continue };
            if node.is_silent() {
                continue;
            }
            node.hits.rise_anywhere();
            let Some(pre) = pre else { continue };
            here.set_current(node);
            match pre.call(regs, node.known()) {
                Resume::Redirected => return Resume::Redirected,
                Resume::Unchanged => {}
                changed if resume != Resume::Moved => resume = changed,
                _ => {}
            }
        }
        resume
    }

    /// A hit of several probes of any kind.
    #[inline(never)]
    fn jumped_many(
        &self,
        here: Here<'_, H::Arch>,
        detour: &Detour<H>,
        point: &Point<H::Arch>,
        head: &Node<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let wants_post = point.is(HAS_POST);
        if wants_post && point.method != Method::Simulate && !detour.service.calls_post {
            // The jump had gone before the post handler came: the hit is one of the breakpoint that stands
            // there now.
            return Resume::Redirected;
        }
        head.hits.claim(here.identity(), self.common.shares());
        let sp = regs.sp();
        let may_follow = detour.service.follows && self.is_unfollowed(regs, here.section());
        match self.run_pre(here, point, head, regs) {
            Outcome::Ran if wants_post && self.post_of_jump(here, point, head.generation, sp, regs) => {
                Resume::Redirected
            }
            Outcome::Ran if regs.sp() != sp => Resume::Moved,
            Outcome::Ran if may_follow && self.has_followed(regs, here.section()) => Resume::ChangedFollowed,
            Outcome::Ran => Resume::Changed,
            Outcome::Redirected | Outcome::InJprobe => Resume::Redirected,
        }
    }

    /// Calls the post handlers of a point whose instruction is simulated. Returns whether they have changed a
    /// register: then the registers are those after the instruction. For any other instruction, begins the
    /// hit's frame for [`Probes::after_copy`]; also if the stack pointer is below `sp`, its value at the
    /// place, for [`Probes::run_lowered`].
    fn post_of_jump(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        newest: u32,
        sp: usize,
        regs: &mut RegsOf<H>,
    ) -> bool {
        regs.set_pc(point.place);
        let is_simulated = point.method == Method::Simulate;
        // A simulated push would then write to the stack that this runs on.
        let is_lowered = is_simulated && regs.sp() < sp;
        if is_lowered || !is_simulated {
            let hit = if is_lowered { PinnedHit::Lowered } else { PinnedHit::Copy };
            here.push_pinned(hit, point, newest, Pinned::begin(&self.host));
            if !is_lowered {
                self.host.enter_copy();
            }
            return is_lowered;
        }
        let before = *regs;
        // If it faults, the copy does, too.
        if H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()).is_err() {
            return false;
        }
        let after = *regs;
        self.run_posts(here, point, newest, regs);
        let has_changed = *regs != after;
        if !has_changed {
            *regs = before;
        }
        has_changed
    }

    /// The first copy of a detour has run: calls the post handlers.
    fn after_copy(&self, detour: &Detour<H>, regs: &mut RegsOf<H>) -> Resume {
        let Some(context) = running(&self.host) else { return Resume::Unchanged };
        let inside = context.open();
        let here = inside.here();
        let mut resume = Resume::Unchanged;
        if let Some((point, newest)) = self.end_copy(here, detour) {
            let next = detour.place.wrapping_add(usize::from(point.insn_len));
            regs.set_pc(next);
            let sp = regs.sp();
            self.run_posts(here, point, newest, regs);
            resume = match regs.pc() == next {
                true if regs.sp() == sp => Resume::Changed,
                true => Resume::Moved,
                false => Resume::Redirected,
            };
        }
        resume
    }

    /// Takes the frame of the copy that runs first in `detour` off the context, if there is one. Returns the
    /// point, and the newest probe that saw the hit.
    pub(crate) fn end_copy<'s>(
        &self,
        here: Here<'s, H::Arch>,
        detour: &Detour<H>,
    ) -> Option<(&'s Point<H::Arch>, u32)> {
        let top = between(here, detour).filter(|_| detour.service.calls_post)?;
        let (point, (newest, pinned)) = (top.point, top.end());
        self.host.leave_copy();
        pinned.end(&self.host);
        Some((point, newest))
    }

    /// A nested hit, or one for which there is no room.
    fn miss_detour(&self, detour: &Detour<H>, section: Section<'_>) {
        if let Some(point) = self.point_of(detour, section) {
            count_missed(point);
        }
    }

    /// The point whose jump has led here. If the jump has been taken out of text meanwhile, and the probe is
    /// still there, it is a hit all the same.
    #[inline(always)]
    fn point_of<'g>(&self, detour: &Detour<H>, section: Section<'g>) -> Option<&'g Point<H::Arch>> {
        match detour.point(section) {
            None => self.places.at(detour.place, section),
            point => point,
        }
    }

    /// Handles a breakpoint that belongs to detours: inside a jump, or the trap that takes all registers.
    pub(crate) fn in_detour(&self, at: CodeAddr, regs: &mut RegsOf<H>, section: Section<'_>) -> Option<Trap> {
        if let Some(jumps) = H::Arch::JUMPS.filter(|jumps| at == jumps.detour_resume_trap()) {
            let kept = jumps.detour_regs(regs);
            // SAFETY: only the trampoline traps there, with the address of the registers that it has saved.
            let kept = unsafe { ptr::with_exposed_provenance::<RegsOf<H>>(kept).read() };
            jumps.resume_with(regs, kept);
            return Some(self.run_lowered(regs, section));
        }
        let copy = self.copy_of_displaced(at, section)?;
        regs.set_pc(copy);
        Some(Trap::Handled)
    }

    /// In the trap that has taken all registers: simulates the instruction of a hit that waits for it, and
    /// calls its post handlers.
    fn run_lowered(&self, regs: &mut RegsOf<H>, section: Section<'_>) -> Trap {
        let Some(here) = running(&self.host).map(|context| context.within(section)) else {
            return Trap::Handled;
        };
        let Some(top) = here.top_pinned(PinnedHit::Lowered) else { return Trap::Handled };
        let (point, (newest, pinned)) = (top.point, top.end());
        pinned.end(&self.host);
        if let Err(fault) = H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()) {
            return Trap::Fault(fault);
        }
        self.run_posts(here, point, newest, regs);
        Trap::Handled
    }

    /// The copy of the instruction at `at`, which a jump in text displaces.
    fn copy_of_displaced(&self, at: CodeAddr, section: Section<'_>) -> Option<CodeAddr> {
        if JumpsOf::<H>::JUMP_LEN <= H::Arch::breakpoint(at).len() {
            return None;
        }
        (H::Arch::INSN_ALIGN..JumpsOf::<H>::JUMP_LEN).step_by(H::Arch::INSN_ALIGN).find_map(|distance| {
            let place = at.wrapping_offset(-(distance as isize));
            let point = self.places.at(place, section)?;
            let detour = Standing::<H>::of(point).detour()?;
            let index = detour.displaced.starts().position(|start| start == distance)?;
            Some(detour.copy(index))
        })
    }
}
