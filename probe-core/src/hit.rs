//! The lock-free half: breakpoints, jumps, single steps, faults, debug registers, and returns of followed
//! calls.
//!
//! All of it may run in any code at any time, so nothing here locks, allocates, panics or logs. A section
//! keeps everything that it reads from being freed (the module `quiesce` says why): references live as long
//! as their proof, [`Here`] or [`Section`](crate::state::section::Section).

pub(crate) mod by_jump;
mod fault;
mod jprobe;
pub(crate) mod ret;
pub(crate) mod step;
mod stray;
mod watch;

use crate::addr::CodeAddr;
use crate::arch::{Arch, MemFault, Method, NativeCalls, Regs, Resume};
use crate::state::context::active::{Top, TopInSlot};
use crate::state::context::{Here, Running};
use crate::state::frame::{Kept, PinnedHit, SlotHit};
use crate::state::host::{Host, RegsOf, running};
use crate::state::point::{Handlers, LINGERS, Mode, Node, Point};
use crate::state::probes::Probes;
use crate::state::slots::is_in_slot;
use crate::sync::Relaxed;
use core::ptr;

/// The core's answer to a breakpoint trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Trap {
    /// Not one of ours; the registers are untouched. The host's own handling goes on (HIT_5).
    NotOurs,
    /// Resume with the registers as they are now.
    Handled,
    /// The original instruction made an access that faults. The registers are as before the instruction, with
    /// pc = the place: the host raises this fault, by way of [`Traps::fault`](crate::traps::Traps::fault)
    /// first.
    Fault(MemFault),
}

/// What the core made of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum FaultVerdict {
    /// Not ours; the registers are untouched.
    NotOurs,
    /// A fault handler has dealt with it: resume with the registers as they are now.
    Handled,
    /// It happened in a slot, or in the simulation: the registers now say that it happened at the place. The
    /// host's own fault handling continues with them.
    Restored,
}

/// How the pre handlers of a point have ended.
pub(crate) enum Outcome {
    /// All have run.
    Ran,
    /// One has changed the control flow.
    Redirected,
    /// A jprobe's handler runs next.
    InJprobe,
}

impl<H: Host> Probes<H> {
    /// What [`Traps::breakpoint`](crate::traps::Traps::breakpoint) does.
    #[inline(always)]
    pub(crate) fn breakpoint(&self, regs: &mut RegsOf<H>) -> Trap {
        let place = H::Arch::breakpoint_address(regs);
        let Some(context) = running(&self.host) else { return self.breakpoint_without_context(place, regs) };
        let Some(word) = context.idle_word() else {
            // The usual end of a step comes first; it is as frequent as a hit with a post handler.
            return match self.end_only_step(context, place, regs) {
                Some(trap) => trap,
                None => self.breakpoint_busy(context, place, regs),
            };
        };
        let stay = context.open_idle(word);
        let here = context.within(stay.section());
        let Some(point) = self.places.at(place, here.section()) else {
            let trap = self.not_in_table(here, place, regs);
            context.close_idle(word, stay);
            return trap;
        };
        let Some(head) = point.newest() else {
            let trap = self.no_probe_left(point, regs, here.section());
            context.close_idle(word, stay);
            return trap;
        };
        regs.set_pc(place);
        let outcome = self.run_pre(here, point, head, regs);
        here.set_current(ptr::null());
        match outcome {
            Outcome::Ran => {}
            Outcome::Redirected => {
                context.close_idle(word, stay);
                return Trap::Handled;
            }
            // Until the handler returns.
            Outcome::InJprobe => {
                stay.hand_on();
                return Trap::Handled;
            }
        }
        // Three comparisons, the most frequent first: a table of jumps costs more.
        let mode = point.mode();
        if mode == Mode::Boost {
            regs.set_pc(point.slot);
        } else if mode == Mode::Simulate {
            regs.set_pc(point.place);
            if let Err(fault) = H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()) {
                context.close_idle(word, stay);
                return Trap::Fault(fault);
            }
        } else if mode == Mode::Step {
            here.push_only(word, point, self.enter_slot(point, head.generation, regs));
            stay.hand_on();
            return Trap::Handled;
        } else {
            let trap = self.run_with_post(here, point, mode, head.generation, regs);
            context.close(stay);
            return trap;
        }
        context.close_idle(word, stay);
        Trap::Handled
    }

    /// Sends the registers into the slot of a step; returns what the step's end needs.
    #[inline(always)]
    fn enter_slot(&self, point: &Point<H::Arch>, newest: u32, regs: &mut RegsOf<H>) -> Kept<H::Arch> {
        regs.set_pc(point.place);
        let state = if point.method == Method::Step {
            H::Arch::before_step(&point.plan, point.place, point.slot, regs)
        } else {
            Default::default()
        };
        regs.set_pc(point.slot);
        Kept { newest, slot_word: self.host.enter_slot(regs), state }
    }

    /// Gives back what a step has borrowed and resumes behind the instruction, in the original text.
    #[inline(always)]
    fn leave_slot(&self, point: &Point<H::Arch>, kept: &Kept<H::Arch>, regs: &mut RegsOf<H>) {
        self.host.leave_slot(regs, kept.slot_word);
        self.step_over(point, &kept.state, regs);
    }

    /// Resumes behind the instruction that has run in the slot of `point`.
    #[inline(always)]
    fn step_over(&self, point: &Point<H::Arch>, state: &<H::Arch as Arch>::StepState, regs: &mut RegsOf<H>) {
        let insn_len = usize::from(point.insn_len);
        if point.method == Method::Boost && point.mode() != Mode::SystemCall {
            // It does not change the control flow: its slot may as well end in a jump to there.
            regs.set_pc(point.place.wrapping_add(insn_len));
        } else {
            H::Arch::after_step(&point.plan, insn_len, point.place, point.slot, regs, state);
        }
    }

    /// Handles the trailing breakpoint of the only active hit, which has post handlers; `None` if the trap is
    /// something else, and nothing has been done.
    #[inline(always)]
    fn end_only_step(
        &self,
        context: Running<'_, H::Arch>,
        place: CodeAddr,
        regs: &mut RegsOf<H>,
    ) -> Option<Trap> {
        let step = context.only_step()?;
        if !is_in_slot::<H::Arch>(place, step.slot()) || self.common.spares().holds(step.slot(), regs.sp()) {
            return None;
        }
        let (word, stay, ended) = step.end();
        let here = context.within(stay.section());
        let point = ended.point(here.section());
        self.leave_slot(point, &ended.kept, regs);
        self.run_posts(here, point, ended.kept.newest, regs);
        context.close_idle(word, stay);
        Some(Trap::Handled)
    }

    /// Calls the pre handlers, newest first (REG_11).
    ///
    /// A place seldom has more than two probes. The first two are called outside of the loop, whose constants
    /// would need registers.
    #[inline(always)]
    pub(crate) fn run_pre(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        head: &Node<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Outcome {
        let outcome = self.run_pre_of(here, point, head, head.generation, regs);
        if !matches!(outcome, Outcome::Ran) {
            return outcome;
        }
        let Some(second) = head.behind() else { return Outcome::Ran };
        let outcome = self.run_pre_of(here, point, second, head.generation, regs);
        if !matches!(outcome, Outcome::Ran) {
            return outcome;
        }
        match second.behind() {
            Some(next) => self.run_more_pre(here, point, next, head.generation, regs),
            None => Outcome::Ran,
        }
    }

    /// Calls the pre handlers of `node` and of those behind it.
    #[inline(never)]
    fn run_more_pre(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        mut node: &Node<H::Arch>,
        newest: u32,
        regs: &mut RegsOf<H>,
    ) -> Outcome {
        loop {
            let outcome = self.run_pre_of(here, point, node, newest, regs);
            if !matches!(outcome, Outcome::Ran) {
                return outcome;
            }
            match node.behind() {
                Some(next) => node = next,
                None => return Outcome::Ran,
            }
        }
    }

    /// Calls the pre handler of `node`.
    #[inline(always)]
    fn run_pre_of(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        node: &Node<H::Arch>,
        newest: u32,
        regs: &mut RegsOf<H>,
    ) -> Outcome {
        if node.is_silent() {
            return Outcome::Ran;
        }
        match &node.handlers {
            Handlers::Kprobe { pre, .. } => {
                node.hits.rise_anywhere();
                if let Some(pre) = pre {
                    here.set_current(node);
                    if pre.call(regs, node.known()) == Resume::Redirected {
                        return Outcome::Redirected;
                    }
                }
            }
            Handlers::Return(probe) => {
                self.enter_call(here, node, probe, regs);
            }
            Handlers::Jprobe(entry) => {
                if self.enter_jprobe(here, point, node, entry.0, newest, regs) {
                    return Outcome::InJprobe;
                }
            }
        }
        Outcome::Ran
    }

    /// The end of a hit whose instruction needs a frame, a bare slot, or post handlers after a simulation.
    /// `newest` is the newest probe that saw the hit: handlers of probes that were registered later are not
    /// called.
    #[inline(never)]
    fn run_with_post(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        mode: Mode,
        newest: u32,
        regs: &mut RegsOf<H>,
    ) -> Trap {
        let trap = self.execute(here, point, mode, SlotHit::Outer, newest, regs);
        if mode == Mode::SimulatePost && trap == Trap::Handled {
            self.run_posts(here, point, newest, regs);
        }
        trap
    }

    /// Runs the original instruction, whatever its mode, without calling any handler.
    fn execute(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        mode: Mode,
        hit: SlotHit,
        newest: u32,
        regs: &mut RegsOf<H>,
    ) -> Trap {
        regs.set_pc(point.place);
        match mode {
            Mode::Simulate | Mode::SimulatePost => {
                match H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()) {
                    Ok(()) => Trap::Handled,
                    Err(fault) => Trap::Fault(fault),
                }
            }
            Mode::Step if here.has_room() => {
                here.push(hit, point, self.enter_slot(point, newest, regs));
                Trap::Handled
            }
            _ => self.execute_bare(point, regs),
        }
    }

    /// Runs the original instruction in its slot without a frame. The slot's address alone finishes it, or a
    /// spare if it borrows registers.
    pub(crate) fn execute_bare(&self, point: &Point<H::Arch>, regs: &mut RegsOf<H>) -> Trap {
        if !point.is(LINGERS) {
            point.note_bare_run();
        }
        if point.method == Method::Step && H::Arch::keeps_state(&point.plan) {
            return self.execute_with_spare(point, regs);
        }
        regs.set_pc(point.slot);
        Trap::Handled
    }

    /// As [`Probes::execute_bare`], for an instruction that borrows registers.
    ///
    /// If all spares are in use, the breakpoint is hit again: each user has one instruction left to run,
    /// which is no system call, so one is free soon.
    #[cold]
    fn execute_with_spare(&self, point: &Point<H::Arch>, regs: &mut RegsOf<H>) -> Trap {
        regs.set_pc(point.place);
        let Some(spare) = self.common.spares().claim() else {
            self.host.relax();
            return Trap::Handled;
        };
        let sp = regs.sp();
        let Kept { slot_word, state, .. } = self.enter_slot(point, 0, regs);
        spare.fill(point.slot, sp, slot_word, state);
        Trap::Handled
    }

    /// The registers that a step in `slot` without a frame has borrowed; by default none. In the trap that
    /// ends it.
    fn take_spare(&self, slot: CodeAddr, regs: &mut RegsOf<H>) -> <H::Arch as Arch>::StepState {
        let Some((kept, state)) = self.common.spares().take(slot, regs.sp()) else {
            return Default::default();
        };
        self.host.leave_slot(regs, kept);
        state
    }

    /// Calls the post handlers of the probes that saw the hit; the first by itself, as in
    /// [`Probes::run_pre`].
    #[inline(always)]
    pub(crate) fn run_posts(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        newest: u32,
        regs: &mut RegsOf<H>,
    ) {
        if let Some(head) = point.newest() {
            self.run_post_of(here, head, newest, regs);
            if let Some(next) = head.behind() {
                self.run_more_posts(here, next, newest, regs);
            }
        }
        here.set_current(ptr::null());
    }

    /// Calls the post handlers of `node` and of those behind it.
    #[inline(never)]
    fn run_more_posts(
        &self,
        here: Here<'_, H::Arch>,
        mut node: &Node<H::Arch>,
        newest: u32,
        regs: &mut RegsOf<H>,
    ) {
        loop {
            self.run_post_of(here, node, newest, regs);
            match node.behind() {
                Some(next) => node = next,
                None => return,
            }
        }
    }

    /// Calls the post handler of `node`, if it saw the hit.
    #[inline(always)]
    fn run_post_of(&self, here: Here<'_, H::Arch>, node: &Node<H::Arch>, newest: u32, regs: &mut RegsOf<H>) {
        if let Handlers::Kprobe { post: Some(post), .. } = &node.handlers
            && !node.is_silent()
            && node.is_not_younger_than(newest)
        {
            here.set_current(node);
            post(regs, node.known());
        }
    }

    /// Handles a breakpoint while a hit is active in this context: the end of a step, the return of a
    /// jprobe's handler, or a nested hit.
    #[inline(never)]
    fn breakpoint_busy(&self, context: Running<'_, H::Arch>, place: CodeAddr, regs: &mut RegsOf<H>) -> Trap {
        let inside = context.open();
        let here = inside.here();
        match here.top() {
            Some(Top::Slot(top)) if self.is_in_step(&top, place, regs) => {
                return self.finish_step(here, top, regs);
            }
            Some(Top::Pinned(top))
                if top.hit == PinnedHit::Jprobe
                    && H::Arch::CALLS.is_some_and(|calls| place == calls.jprobe_return_trap()) =>
            {
                return self.finish_jprobe(here, top, regs);
            }
            _ => {}
        }
        match self.places.at(place, here.section()) {
            Some(point) => self.nested(here, point, regs),
            None => self.not_in_table(here, place, regs),
        }
    }

    /// Whether `at` lies in the slot of the innermost active hit, and not in that of a step with a spare.
    #[inline(always)]
    pub(crate) fn is_in_step(&self, top: &TopInSlot<'_, H::Arch>, at: CodeAddr, regs: &RegsOf<H>) -> bool {
        is_in_slot::<H::Arch>(at, top.point.slot) && !self.common.spares().holds(top.point.slot, regs.sp())
    }

    /// A hit inside another one: its handlers are skipped, the instruction is run (HIT_6).
    fn nested(&self, here: Here<'_, H::Arch>, point: &Point<H::Arch>, regs: &mut RegsOf<H>) -> Trap {
        if point.head.load(Relaxed).is_null() {
            return self.no_probe_left(point, regs, here.section());
        }
        count_missed(point);
        self.execute(here, point, point.mode(), SlotHit::Nested, 0, regs)
    }

    /// Handles a hit for which there is no context: as a nested one, without a frame.
    #[cold]
    #[inline(never)]
    fn breakpoint_without_context(&self, place: CodeAddr, regs: &mut RegsOf<H>) -> Trap {
        let inside = self.anonymous();
        let section = inside.section();
        let Some(point) = self.places.at(place, section) else {
            return match self.slot_at(place, section) {
                Some((point, slot)) => {
                    let state = self.take_spare(slot, regs);
                    self.step_over(point, &state, regs);
                    Trap::Handled
                }
                None => {
                    self.in_detour(place, regs, section).unwrap_or_else(|| self.stray(place, regs, section))
                }
            };
        };
        if point.head.load(Relaxed).is_null() && !point.text.is_planted() {
            return self.stray(place, regs, section);
        }
        count_missed(point);
        regs.set_pc(place);
        if !point.has_slot() {
            return match H::Arch::simulate(&point.plan, place, regs, self.host.memory()) {
                Ok(()) => Trap::Handled,
                Err(fault) => Trap::Fault(fault),
            };
        }
        self.execute_bare(point, regs)
    }

    /// Handles the trailing breakpoint of the innermost active hit.
    #[inline(always)]
    pub(crate) fn finish_step(
        &self,
        here: Here<'_, H::Arch>,
        top: TopInSlot<'_, H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Trap {
        let TopInSlot { hit, point, .. } = top;
        let kept = top.end();
        self.leave_slot(point, &kept, regs);
        if hit == SlotHit::Outer {
            self.run_posts(here, point, kept.newest, regs);
        }
        Trap::Handled
    }
}

/// Counts a hit whose handlers are skipped, for every probe that would have seen it.
pub(crate) fn count_missed<A: Arch>(point: &Point<A>) {
    for node in point.nodes().filter(|node| !node.is_silent()) {
        node.missed.rise();
    }
}
