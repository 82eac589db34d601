//! Events: a host reports tasks that end and text that goes away, so that nothing of theirs is left behind.

use crate::addr::CodeAddr;
use crate::state::host::Host;
use crate::state::probes::Probes;
use crate::state::task::Task;

/// The events of one program, from [`Probes::events`]: the host reports them.
pub struct Events<'a, H: Host>(&'a Probes<H>);

impl<H: Host> Clone for Events<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for Events<'_, H> {}

impl<H: Host> Probes<H> {
    /// The face on which the host reports that a task ends, or that text goes away.
    #[inline]
    pub const fn events(&self) -> Events<'_, H> {
        Events(self)
    }
}

impl<H: Host> Events<'_, H> {
    /// A task has ended: its calls will not return, count as abandoned, and give their instances back
    /// (RET_13). Returns whether no call is left.
    ///
    /// Report it before the task's stack is used for something else, best from another stack. On that very
    /// stack, calls that may still return are left alone (that of the function which ends the task, for one):
    /// it answers `false`, and has to be reported again.
    pub fn task_exit(self, task: &Task<H::Arch>) -> bool {
        self.0.task_exit(task);
        task.is_idle()
    }

    /// A task is about to end, in functions that still return, and has left most of its calls without
    /// returning. Calls whose frames lie below `sp`, the running stack pointer, and calls that certainly will
    /// not return give their instances back. Returns whether no call is left, so that [`Events::task_exit`]
    /// is not needed.
    pub fn task_exiting(self, task: &Task<H::Arch>, sp: usize) -> bool {
        self.0.task_exiting(task, sp)
    }

    /// The text from `start` up to `end` is about to go away (a module unloaded, a shared object closed): its
    /// probes, and watchpoints on it, become gone, nothing is written to it any more, and their handles stay
    /// valid (CTL_5).
    ///
    /// No context runs in that text any more. Do not report it from a handler, nor from code that has
    /// interrupted a registration ([`Events::can_be_told`]).
    pub fn text_going(self, start: CodeAddr, end: CodeAddr) {
        self.0.text_going(start, end);
    }

    /// Whether [`Events::text_going`] may be called here: not in a handler, nor in code that interrupts a
    /// registration of its own task, which would wait for itself.
    pub fn can_be_told(self) -> bool {
        !self.0.is_in_handler()
    }
}
