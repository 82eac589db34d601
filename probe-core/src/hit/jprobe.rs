//! Jprobes: into the handler, and back to the function (JMP_2).

use super::Trap;
use crate::arch::{Arch, Calls, NativeCalls};
use crate::state::context::{Context, Wait};
use crate::state::host::{Host, RegsOf};
use crate::state::point::{Node, Point};
use crate::state::probes::Probes;
use core::ptr;

impl<H: Host> Probes<H> {
    /// Sends the context into a jprobe's handler; `false` where that is impossible, and nothing has changed.
    #[inline(never)]
    pub(super) fn enter_jprobe(
        &self,
        context: &Context<H::Arch>,
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
        self.host.pin();
        // SAFETY: this is the context that is running, and at depth 0 no jprobe is active.
        unsafe { context.keep_jprobe_regs(&kept) };
        // SAFETY: as above.
        unsafe { context.push(Wait::Jprobe, point, newest, 0, Default::default()) };
        node.hits.rise_anywhere();
        true
    }

    /// A jprobe's handler has returned: the probed function runs with its own registers (JMP_2).
    pub(super) fn finish_jprobe(
        &self,
        context: &Context<H::Arch>,
        point: &Point<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Trap {
        // SAFETY: this is the context that is running, and `enter_jprobe` has kept them.
        *regs = unsafe { context.jprobe_regs() };
        // SAFETY: this is the context that is running.
        let popped = unsafe { context.pop() };
        self.host.unpin();
        let newest = popped.map_or(0, |popped| popped.newest);
        context.set_current(ptr::null());
        // SAFETY: `breakpoint` has handed on the section of the hit whose frame has just been popped.
        let section = unsafe { context.come_back() };
        let trap = self.run_with_post(context, point, point.mode(), newest, regs);
        context.close(section);
        trap
    }
}
