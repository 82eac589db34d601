//! Jprobes: into the handler, and back to the function (JMP_2).

use super::Trap;
use crate::arch::{Arch, Calls, NativeCalls};
use crate::state::context::Here;
use crate::state::context::active::TopPinned;
use crate::state::host::{Host, RegsOf};
use crate::state::pinned::Pinned;
use crate::state::point::{Node, Point};
use crate::state::probes::Probes;
use core::ptr;

impl<H: Host> Probes<H> {
    /// Sends the context into a jprobe's handler; `false` if that is impossible, and nothing has changed.
    #[inline(never)]
    pub(super) fn enter_jprobe(
        &self,
        here: Here<'_, H::Arch>,
        point: &Point<H::Arch>,
        node: &Node<H::Arch>,
        handler: usize,
        newest: u32,
        regs: &mut RegsOf<H>,
    ) -> bool {
        let kept = *regs;
        let entered = H::Arch::CALLS
            .map(|calls| calls.enter_jprobe(regs, handler, calls.jprobe_return_trap(), self.host.memory()));
        let Some(Ok(())) = entered else {
            node.missed.rise();
            return false;
        };
        here.push_jprobe(point, newest, &kept, Pinned::begin(&self.host));
        node.hits.rise_anywhere();
        true
    }

    /// A jprobe's handler has returned: the probed function runs with its own registers (JMP_2).
    #[inline(always)]
    pub(super) fn finish_jprobe(
        &self,
        here: Here<'_, H::Arch>,
        top: TopPinned<'_, H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Trap {
        let point = top.point;
        let Some((newest, pinned, stay)) = top.end_jprobe(regs) else { return Trap::Handled };
        pinned.end(&self.host);
        here.set_current(ptr::null());
        let trap = self.run_with_post(here, point, point.mode(), newest, regs);
        here.close(stay);
        trap
    }
}
