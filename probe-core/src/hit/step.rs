//! Single-step traps, for hosts that step slots in hardware instead of by the breakpoint at their end.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Regs, SingleStep, Tail};
use crate::hit::Trap;
use crate::state::context::active::Top;
use crate::state::host::{Host, RegsOf, running};
use crate::state::point::Point;
use crate::state::probes::Probes;
use crate::state::section::Section;

impl<H: Host> Probes<H>
where
    H::Arch: SingleStep,
{
    /// What [`Traps::step`](crate::traps::Traps::step) does.
    pub(crate) fn step(&self, regs: &mut RegsOf<H>) -> Trap {
        let at = regs.pc();
        let Some(context) = running(&self.host) else {
            let inside = self.anonymous();
            return self.step_on(regs, inside.section());
        };
        let inside = context.open();
        let here = inside.here();
        match here.top() {
            Some(Top::Slot(top)) if self.is_in_step(&top, at, regs) && is_at_end(top.point, at) => {
                self.finish_step(here, top, regs)
            }
            _ => self.step_on(regs, here.section()),
        }
    }

    /// Steps on, to the breakpoint at the end, in a slot of several instructions, in one that repeats itself
    /// (x86: REP), or in one without a frame.
    fn step_on(&self, regs: &mut RegsOf<H>, section: Section<'_>) -> Trap {
        if self.slots.place_at::<H::Arch>(regs.pc(), section).is_none() {
            return Trap::NotOurs;
        }
        // What it keeps is kept already.
        H::Arch::begin(regs);
        Trap::Handled
    }
}

/// The kind of copy that a context is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// A place's own slot: the code behind the copy leads to the program's text.
    Slot,
    /// A detour, with copies of the instructions that a jump displaces.
    Detour,
}

impl<H: Host> Probes<H> {
    /// What [`Traps::copied_at`](crate::traps::Traps::copied_at) does.
    pub(crate) fn copied_at(&self, at: CodeAddr) -> Option<Copied> {
        let inside = self.anonymous();
        let section = inside.section();
        match self.slots.place_at::<H::Arch>(at, section) {
            Some(_) => Some(Copied::Slot),
            None => self.detours.at(at, section).map(|_| Copied::Detour),
        }
    }
}

/// Whether everything before the breakpoint at the slot's end has run.
fn is_at_end<A: Arch>(point: &Point<A>, at: CodeAddr) -> bool {
    A::tail(&point.plan, usize::from(point.insn_len), point.place, point.slot, Tail::Breakpoint)
        .is_some_and(|tail| at == point.slot.wrapping_add(usize::from(tail.offset)))
}
