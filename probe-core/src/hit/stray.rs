//! Breakpoint traps at an address without a point: the end of a slot without a frame, an instruction under a
//! jump, a breakpoint that has just been removed, somebody else's breakpoint (HIT_5).

use super::Trap;
use crate::addr::CodeAddr;
use crate::arch::{Arch, Regs};
use crate::state::context::Here;
use crate::state::host::{Host, RegsOf};
use crate::state::point::{Mode, Point};
use crate::state::probes::Probes;
use crate::state::section::Section;
use crate::state::slots;
use crate::sync::{SeqCst, fence};

impl<H: Host> Probes<H> {
    /// Handles a breakpoint at no probe's place: a slot's end without a frame, a probe that has just gone, or
    /// somebody else's.
    #[inline(never)]
    pub(super) fn not_in_table(
        &self,
        here: Here<'_, H::Arch>,
        place: CodeAddr,
        regs: &mut RegsOf<H>,
    ) -> Trap {
        let section = here.section();
        if let Some(trap) = self.in_detour(place, regs, section) {
            return trap;
        }
        let Some((point, slot)) = self.slot_at(place, section) else {
            return self.stray(place, regs, section);
        };
        let state = self.take_spare(slot, regs);
        self.step_over(point, &state, regs);
        if here.depth() == 0 && point.mode() == Mode::SystemCall {
            let newest = point.nodes().next().map_or(0, |node| node.generation);
            self.run_posts(here, point, newest, regs);
        }
        Trap::Handled
    }

    /// Handles a hit at a place in the table that has no probe left.
    pub(super) fn no_probe_left(
        &self,
        point: &Point<H::Arch>,
        regs: &mut RegsOf<H>,
        section: Section<'_>,
    ) -> Trap {
        if !point.text.is_planted() {
            return self.stray(point.place, regs, section);
        }
        // Its breakpoint could not be removed: the program goes on as if there were none.
        regs.set_pc(point.place);
        if point.has_slot() {
            return self.execute_bare(point, regs);
        }
        match H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()) {
            Ok(()) => Trap::Handled,
            Err(fault) => Trap::Fault(fault),
        }
    }

    /// Tells a breakpoint that is just coming or going, which is retried, from somebody else's (HIT_5).
    ///
    /// Text and table are looked at one after the other, and a probe may be planted or removed between the
    /// two looks. They belong together only if no breakpoint was written meanwhile; otherwise nothing is
    /// known, and the breakpoint is hit again if it still stands there.
    #[cold]
    pub(super) fn stray(&self, place: CodeAddr, regs: &mut RegsOf<H>, section: Section<'_>) -> Trap {
        let mut bytes = [0; 4];
        let wanted = H::Arch::breakpoint(place).len().min(bytes.len());
        let Some(out) = bytes.get_mut(..wanted) else { return Trap::NotOurs };
        let before = self.places.texts().changes();
        fence(SeqCst);
        // Under a jump that has been planted again.
        if let Some(trap) = self.in_detour(place, regs, section) {
            return trap;
        }
        if self.host.read_text(H::Arch::first_byte(place), out) < wanted {
            return Trap::NotOurs;
        }
        let is_ours = self.places.at(place, section).is_some_and(|point| point.text.is_planted());
        fence(SeqCst);
        let is_steady = before == self.places.texts().changes()
            && (before & 1 == 0 || self.places.texts().is_changed_by(self.host.task()));
        if is_steady && H::Arch::is_breakpoint(place, out) && !is_ours {
            return Trap::NotOurs;
        }
        regs.set_pc(place);
        Trap::Handled
    }

    /// The point whose slot `at` lies in, and the slot's start.
    pub(super) fn slot_at<'g>(
        &self,
        at: CodeAddr,
        section: Section<'g>,
    ) -> Option<(&'g Point<H::Arch>, CodeAddr)> {
        let place = self.slots.place_at::<H::Arch>(at, section)?;
        let point = self.places.at(place, section)?;
        slots::is_in_slot::<H::Arch>(at, point.slot).then_some((point, point.slot))
    }
}
