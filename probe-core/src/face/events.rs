//! Events: what a host tells of its tasks and its text, so that nothing stays behind for what has gone.

use crate::addr::CodeAddr;
use crate::state::host::Host;
use crate::state::probes::Probes;
use crate::state::task::Task;

/// What a host tells one program's probes, from [`Probes::events`].
pub struct Events<'a, H: Host>(&'a Probes<H>);

impl<H: Host> Clone for Events<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for Events<'_, H> {}

impl<H: Host> Probes<H> {
    /// Where the host tells that a task ends, or that text goes away.
    #[inline]
    pub const fn events(&self) -> Events<'_, H> {
        Events(self)
    }
}

impl<H: Host> Events<'_, H> {
    /// A task has ended: its calls will not return, count as abandoned, and give their instances back (RET_13).
    ///
    /// Told before the task's stack is used for something else, best from another stack. On that very stack, calls that
    /// may still return are left alone, and it is to be told again.
    pub fn task_exit(self, task: &Task<H::Arch>) {
        self.0.task_exit(task);
    }

    /// A task is about to end, by functions that still return, and has left most of its calls without returning. Those
    /// whose frames lie below `sp`, the running stack pointer, or that certainly will not return, give their instances
    /// back. Returns whether no call is left, so that [`Events::task_exit`] is not needed any more.
    pub fn task_exiting(self, task: &Task<H::Arch>, sp: usize) -> bool {
        self.0.task_exiting(task, sp)
    }

    /// The text from `start` up to `end` is about to go away (a module unloaded, a shared object closed): its probes,
    /// and watchpoints on it, become gone, nothing is written to it, their handles stay valid (CTL_5).
    ///
    /// Nobody runs in that text any more. Not told from a handler, nor where it has interrupted a registration
    /// ([`Events::can_be_told`]).
    pub fn text_going(self, start: CodeAddr, end: CodeAddr) {
        self.0.text_going(start, end);
    }

    /// Whether [`Events::text_going`] can be told here: not in a handler, nor in what interrupts a registration in its own
    /// task, which would wait for itself.
    pub fn can_be_told(self) -> bool {
        !self.0.is_in_handler()
    }
}
