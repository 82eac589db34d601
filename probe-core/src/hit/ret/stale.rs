//! Calls that will not return: left by a longjmp or by unwinding, or cut off by their task's end (RET_7,
//! RET_13).
//!
//! A call is dropped, and its instance goes back to the pool, on good evidence: its frame lies below the
//! stack pointer on its own stack, or the stack is gone. For a task that owns every stack (a thread) the
//! evidence is the contents of memory, which can mislead (an interruption at the moment of the return): such
//! a call is given up, and its stub still leads home.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls};
use crate::state::host::Host;
use crate::state::instance::Instance;
use crate::state::probes::Probes;
use crate::state::task::Task;
use crate::sync::{Relaxed, Release};

impl<H: Host> Probes<H> {
    /// Walks the pending returns of the task whose stack is running at `sp`, newest first, until `is_end`;
    /// clears away calls that have returned in another task, and drops calls that certainly will not return.
    ///
    /// `home` is the return address of the call that is being entered, if one is. If it is a stub, that call
    /// is alive although the stub lies on no stack (it is in the link register, after a tail call or another
    /// return probe).
    pub(super) fn drop_stale(
        &self,
        task: &Task<H::Arch>,
        sp: usize,
        home: Option<CodeAddr>,
        is_end: impl Fn(&Instance<H::Arch>) -> bool,
    ) {
        let mut link = &task.pending;
        // The return address that the last call looked at has kept. If it is a stub, the call of that stub is
        // alive: it will be reached through that return.
        let mut next_home = home;
        loop {
            // SAFETY: what is on the task's list is not freed.
            let Some(instance) = (unsafe { link.load(Relaxed).as_ref() }) else { return };
            if is_end(instance) {
                return;
            }
            if instance.life.has_returned() {
                link.store(instance.next.load(Relaxed), Release);
                instance.release();
            } else if next_home != Some(instance.stub)
                && self.will_not_return(task, instance, sp)
                && instance.life.claim_live()
            {
                link.store(instance.next.load(Relaxed), Release);
                drop_claimed(task, instance);
            } else {
                next_home = Some(instance.real());
                link = &instance.next;
            }
        }
    }

    /// Whether a call on the list of the task whose stack is running at `sp` has been left.
    fn will_not_return(&self, task: &Task<H::Arch>, instance: &Instance<H::Arch>, sp: usize) -> bool {
        if task.has_one_stack() {
            // A call that is alive has the stack pointer below its frame; at it, only where its stub is the
            // newer one's return address, or nothing has been called since.
            return instance.frame() <= sp;
        }
        // With the switch off, no new call wants room; and a host that is leaving a process has given up what
        // makes reading safe.
        self.switches.is_on()
            && instance.life.is_pending()
            && H::Arch::CALLS.is_some_and(|calls| {
                !calls.may_return(instance.frame(), instance.stub, sp, self.host.memory())
            })
    }

    /// What [`Events::task_exit`](crate::events::Events::task_exit) does.
    pub(crate) fn task_exit(&self, task: &Task<H::Arch>) {
        let _guard = self.anonymous();
        let marker = 0_u8;
        let here = (&raw const marker).addr();
        if task.has_one_stack() && task.runs_at(here) {
            self.drop_below(task, here);
            return;
        }
        loop {
            // SAFETY: what is on the task's list is not freed.
            let Some(instance) = (unsafe { task.pending.load(Relaxed).as_ref() }) else { return };
            task.pending.store(instance.next.load(Relaxed), Relaxed);
            if instance.life.claim_live() {
                drop_claimed(task, instance);
            } else if instance.life.has_returned() || !instance.life.disown() {
                instance.release();
            }
        }
    }

    /// What [`Events::task_exiting`](crate::events::Events::task_exiting) does.
    pub(crate) fn task_exiting(&self, task: &Task<H::Arch>, sp: usize) -> bool {
        let _guard = self.anonymous();
        self.drop_below(task, sp);
        self.drop_stale(task, sp, None, |_| false);
        task.is_idle()
    }

    /// Drops the calls of a task that lie below `sp`, which is on its stack, and clears away those that have
    /// returned in another task.
    fn drop_below(&self, task: &Task<H::Arch>, sp: usize) {
        let mut link = &task.pending;
        // SAFETY: what is on the task's list is not freed.
        while let Some(instance) = unsafe { link.load(Relaxed).as_ref() } {
            if instance.life.has_returned() {
                link.store(instance.next.load(Relaxed), Release);
                instance.release();
            } else if instance.frame() < sp && instance.life.claim_live() {
                link.store(instance.next.load(Relaxed), Release);
                drop_claimed(task, instance);
            } else {
                link = &instance.next;
            }
        }
    }
}

/// Drops a claimed call that is off the list of `task`. If the task has one stack, no context can return from
/// the call any more; if it owned every stack, another thread may resume a coroutine that is in the call.
fn drop_claimed<A: Arch>(task: &Task<A>, instance: &Instance<A>) {
    // SAFETY: the call is claimed, and its data still there.
    unsafe { instance.abandon() };
    if task.has_one_stack() { instance.release() } else { instance.life.give_up() }
}
