//! Faults of original instructions, of their copies and of handlers (HIT_9).

use super::FaultVerdict;
use crate::arch::{Arch, Regs};
use crate::state::context::Here;
use crate::state::context::active::{Top, TopInSlot};
use crate::state::frame::SlotHit;
use crate::state::handler::Answer;
use crate::state::host::{Host, RegsOf, running};
use crate::state::point::{Handlers, Node, Point};
use crate::state::probes::Probes;
use core::ptr;

impl<H: Host> Probes<H> {
    /// What [`Traps::fault`](crate::traps::Traps::fault) does.
    pub(crate) fn fault(&self, regs: &mut RegsOf<H>, trap_number: u32) -> FaultVerdict {
        let Some(context) = running(&self.host) else { return self.fault_without_context(regs) };
        let at = regs.pc();
        let inside = context.open();
        let (here, was_outside) = (inside.here(), inside.was_outside());
        let section = here.section();
        if let Some(Top::Slot(top)) = here.top()
            && self.is_in_step(&top, at, regs)
        {
            return self.fault_in_step(here, top, regs, trap_number);
        }
        if let Some((detour, original)) = self.detours.at(at, section) {
            regs.set_pc(original);
            if original == detour.place {
                // Any other context in a copy with a frame is not in the first copy (`Probes::miss_detour`).
                self.end_copy(here, detour);
            }
            match detour.point(section) {
                Some(point) if original == point.place => {
                    self.fault_at(here, point, was_outside && here.depth() == 0, regs, trap_number)
                }
                _ => FaultVerdict::Restored,
            }
        } else if let Some((point, slot)) = self.slot_at(at, section) {
            let state = self.take_spare(slot, regs);
            H::Arch::abort_step(&point.plan, point.place, regs, &state);
            regs.set_pc(point.place);
            self.fault_at(here, point, was_outside && here.depth() == 0, regs, trap_number)
        } else if was_outside {
            match self.places.at(at, section) {
                // Our breakpoint does not fault, so the simulated instruction did.
                Some(point) if point.text.is_planted() && !point.has_slot() => {
                    self.fault_at(here, point, here.depth() == 0, regs, trap_number)
                }
                _ => FaultVerdict::NotOurs,
            }
        } else {
            self.fault_in_handler(here, regs, trap_number)
        }
    }

    fn fault_in_step(
        &self,
        here: Here<'_, H::Arch>,
        top: TopInSlot<'_, H::Arch>,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> FaultVerdict {
        let TopInSlot { hit, point, .. } = top;
        let kept = top.end();
        self.host.leave_slot(regs, kept.slot_word);
        H::Arch::abort_step(&point.plan, point.place, regs, &kept.state);
        regs.set_pc(point.place);
        self.fault_at(here, point, hit == SlotHit::Outer, regs, trap_number)
    }

    /// Handles a fault of the original instruction of `point`; the registers say so.
    fn fault_at(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        may_call: bool,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> FaultVerdict {
        if may_call {
            for node in point.nodes().filter(|node| !node.is_silent()) {
                node.faults.rise();
                if self.ask(here, node, regs, trap_number) == Answer::Handled {
                    here.set_current(ptr::null());
                    return FaultVerdict::Handled;
                }
            }
            here.set_current(ptr::null());
        }
        FaultVerdict::Restored
    }

    /// A handler has faulted.
    fn fault_in_handler(
        &self,
        here: Here<'_, H::Arch>,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> FaultVerdict {
        let Some(node) = here.current() else { return FaultVerdict::NotOurs };
        node.faults.rise();
        // A fault in the fault handler itself is nobody's.
        here.set_current(ptr::null());
        let answer = match &node.handlers {
            Handlers::Kprobe { fault: Some(fault), .. } => fault.call(regs, node.known(), trap_number),
            _ => Answer::NotHandled,
        };
        here.set_current(node);
        match answer {
            Answer::Handled => FaultVerdict::Handled,
            Answer::NotHandled => FaultVerdict::NotOurs,
        }
    }

    fn ask(
        &self,
        here: Here<'_, H::Arch>,
        node: &Node<H::Arch>,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> Answer {
        match &node.handlers {
            Handlers::Kprobe { fault: Some(fault), .. } => {
                // Not `node`: a fault in the fault handler itself is nobody's.
                here.set_current(ptr::null());
                fault.call(regs, node.known(), trap_number)
            }
            _ => Answer::NotHandled,
        }
    }

    #[cold]
    fn fault_without_context(&self, regs: &mut RegsOf<H>) -> FaultVerdict {
        let inside = self.anonymous();
        if let Some((_, original)) = self.detours.at(regs.pc(), inside.section()) {
            regs.set_pc(original);
            return FaultVerdict::Restored;
        }
        let Some((point, slot)) = self.slot_at(regs.pc(), inside.section()) else {
            return FaultVerdict::NotOurs;
        };
        let state = self.take_spare(slot, regs);
        H::Arch::abort_step(&point.plan, point.place, regs, &state);
        regs.set_pc(point.place);
        FaultVerdict::Restored
    }
}
