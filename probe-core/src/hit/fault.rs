//! Faults of original instructions, of their copies and of handlers (HIT_9).

use super::FaultVerdict;
use crate::arch::{Arch, Regs};
use crate::state::context::{Context, Wait};
use crate::state::handler::Answer;
use crate::state::host::{Host, RegsOf};
use crate::state::point::{Handlers, Node, Point};
use crate::state::probes::Probes;
use crate::state::slots::is_in_slot;
use core::ptr;

impl<H: Host> Probes<H> {
    /// What [`Traps::fault`](crate::traps::Traps::fault) does.
    pub(crate) fn fault(&self, regs: &mut RegsOf<H>, trap_number: u32) -> FaultVerdict {
        let Some(context) = self.host.context() else { return self.fault_without_context(regs) };
        let at = regs.pc();
        if let Some((Wait::Step | Wait::NestedStep, point)) = context.top() {
            // SAFETY: a point that stands in a frame is not freed.
            if let Some(point) = unsafe { point.as_ref() }
                && is_in_slot::<H::Arch>(at, point.slot)
                && !self.spares.holds(point.slot, regs.sp())
            {
                return self.fault_in_step(context, point, regs, trap_number);
            }
        }
        let inside = context.open();
        let (section, was_outside) = (inside.section(), inside.was_outside());
        if let Some((detour, original)) = self.detour_at(at, section) {
            regs.set_pc(original);
            if original == detour.place {
                // Whoever else is in a copy with a frame is not in the first one (`Probes::miss_detour`).
                self.end_copy(context, detour);
            }
            match detour.point(section) {
                Some(point) if original == point.place => {
                    self.fault_at(context, point, was_outside && context.depth() == 0, regs, trap_number)
                }
                _ => FaultVerdict::Restored,
            }
        } else if let Some((point, slot)) = self.slot_at(at, section) {
            let state = self.take_spare(slot, regs);
            H::Arch::abort_step(&point.plan, point.place, regs, &state);
            regs.set_pc(point.place);
            self.fault_at(context, point, was_outside && context.depth() == 0, regs, trap_number)
        } else if was_outside {
            match self.points.find(at.as_usize(), section) {
                // Our breakpoint does not fault, so the simulated instruction did.
                Some(point) if point.text.is_planted() && !point.has_slot() => {
                    self.fault_at(context, point, context.depth() == 0, regs, trap_number)
                }
                _ => FaultVerdict::NotOurs,
            }
        } else {
            self.fault_in_handler(context, regs, trap_number)
        }
    }

    fn fault_in_step(
        &self,
        context: &Context<H::Arch>,
        point: &Point<H::Arch>,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> FaultVerdict {
        let _inside = context.open();
        let mut verdict = FaultVerdict::NotOurs;
        // SAFETY: this is the context that is running.
        if let Some(popped) = unsafe { context.pop() } {
            self.host.leave_slot(regs, popped.kept);
            H::Arch::abort_step(&point.plan, point.place, regs, &popped.state);
            regs.set_pc(point.place);
            verdict = self.fault_at(context, point, popped.wait == Wait::Step, regs, trap_number);
        }
        verdict
    }

    /// The original instruction of `point` has faulted; the registers say so.
    fn fault_at(
        &self,
        context: &Context<H::Arch>,
        point: &Point<H::Arch>,
        may_call: bool,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> FaultVerdict {
        if may_call {
            for node in point.nodes().filter(|node| !node.is_silent()) {
                node.faults.rise();
                if self.ask(context, node, regs, trap_number) == Answer::Handled {
                    context.set_current(ptr::null());
                    return FaultVerdict::Handled;
                }
            }
            context.set_current(ptr::null());
        }
        FaultVerdict::Restored
    }

    /// A handler has faulted.
    fn fault_in_handler(
        &self,
        context: &Context<H::Arch>,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> FaultVerdict {
        let current = context.current();
        // SAFETY: set while the node's handler runs, which keeps it alive.
        let Some(node) = (unsafe { current.as_ref() }) else { return FaultVerdict::NotOurs };
        node.faults.rise();
        // A fault in the fault handler itself is nobody's.
        context.set_current(ptr::null());
        let answer = match &node.handlers {
            Handlers::Kprobe { fault: Some(fault), .. } => fault.call(regs, node.known(), trap_number),
            _ => Answer::NotHandled,
        };
        context.set_current(current);
        match answer {
            Answer::Handled => FaultVerdict::Handled,
            Answer::NotHandled => FaultVerdict::NotOurs,
        }
    }

    fn ask(
        &self,
        context: &Context<H::Arch>,
        node: &Node<H::Arch>,
        regs: &mut RegsOf<H>,
        trap_number: u32,
    ) -> Answer {
        match &node.handlers {
            Handlers::Kprobe { fault: Some(fault), .. } => {
                // Not `node`: a fault in the fault handler itself is nobody's.
                context.set_current(ptr::null());
                fault.call(regs, node.known(), trap_number)
            }
            _ => Answer::NotHandled,
        }
    }

    #[cold]
    fn fault_without_context(&self, regs: &mut RegsOf<H>) -> FaultVerdict {
        let inside = self.anonymous();
        if let Some((_, original)) = self.detour_at(regs.pc(), inside.section()) {
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
