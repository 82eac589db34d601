//! Traps of debug registers: the handlers of watchpoints.

use crate::addr::CodeAddr;
use crate::arch::Regs;
use crate::state::host::{Host, RegsOf, running};
use crate::state::point::SILENT;
use crate::state::probes::Probes;
use crate::state::section::Section;
use crate::state::watch::{WatchHit, WatchNode};

impl<H: Host> Probes<H> {
    /// What [`Traps::watchpoint`](crate::traps::Traps::watchpoint) does.
    pub(crate) fn watchpoint(&self, regs: &mut RegsOf<H>, index: usize) {
        let Some(context) = running(&self.host) else {
            let inside = self.anonymous();
            if let Some(node) = self.watches.at(index, inside.section()) {
                node.missed.rise();
            }
            return;
        };
        let inside = context.open();
        let section = inside.here().section();
        if let Some(node) = self.watches.at(index, section)
            && !node.is_any(SILENT)
        {
            if inside.was_outside() {
                self.call_watch(node, regs, section);
            } else {
                node.missed.rise();
            }
        }
    }

    /// Calls the handler with the pc in the program's own text: the reference may have been made in a slot or
    /// a detour. A fault in the handler is the host's.
    fn call_watch(&self, node: &WatchNode<H::Arch>, regs: &mut RegsOf<H>, section: Section<'_>) {
        node.hits.rise();
        let Some(handler) = &node.handler else { return };
        let at = regs.pc();
        if let Some(next) = self.behind_copy(at, section) {
            regs.set_pc(next);
        }
        handler(&mut WatchHit { regs, node, lender: self });
        regs.set_pc(at);
    }

    /// The instruction behind the original of the copy, in a slot or a detour, that ends at `at`.
    fn behind_copy(&self, at: CodeAddr, section: Section<'_>) -> Option<CodeAddr> {
        let Some(place) = self.slots.place_at::<H::Arch>(at, section) else {
            return self.detours.at(at, section).map(|(_, next)| next);
        };
        let point = self.places.at(place, section)?;
        Some(place.wrapping_add(usize::from(point.insn_len)))
    }
}
