//! One thread's state, composed: each part owns its fields.

use super::altstack::Stacks;
use super::copy;
use super::deferral::Deferral;
use super::errno::Errno;
use super::executing::Executing;
use super::fault::LastFault;
use super::free::Link;
use super::interrupted::{Interrupted, Outer};
use super::lent::{Lent, Runs};
use super::owner::Owner;
use super::preparation::Preparation;
use super::wished::Wished;
use crate::arch::{Native, UContext};
use crate::sys;
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_core::host::{Context, Task};

/// A thread's words for the embedding program.
pub type Words = [AtomicUsize; 10];

/// One thread's state. One that was never used is all zero.
#[repr(C, align(128))]
pub(crate) struct Block {
    /// The core's state of this thread as a context.
    pub(crate) context: Context<Native>,
    /// The core's state of this thread as a task.
    pub(crate) task: Task<Native>,
    /// The contexts that our running handlers have interrupted.
    pub(crate) interrupted: Interrupted,
    /// The thread's errno.
    pub(super) errno: Errno,
    /// The masks that signals wait with.
    pub(crate) deferral: Deferral,
    /// What the program has blocked of the signals that are never blocked.
    pub(crate) wished: Wished,
    /// Whether a child may be using the block.
    pub(super) lent: Lent,
    /// The program that it is about to execute.
    pub(crate) executing: Executing,
    /// The last fault of a fault-free copy.
    pub(crate) fault: LastFault,
    /// Which thread's the block is.
    pub(super) owner: Owner,
    /// The next free block, while this one is free.
    pub(super) link: Link,
    /// Our alternate stack, which stays with the block, and the program's.
    pub(crate) stacks: Stacks,
    /// Whether the thread is just being prepared.
    pub(super) preparation: Preparation,
    /// The embedding program's ([`super::words`]).
    pub(super) words: Words,
}

impl Block {
    /// Whether a hit is being handled: in a signal handler of ours, or between [`super::keep_errno`] and
    /// [`super::restore_errno`].
    pub(crate) fn is_busy(&self) -> bool {
        (self.interrupted.innermost().is_some() || self.errno.is_kept()) && !self.close_gone()
    }

    /// Whether a hit is being handled, or a step is under way.
    pub(crate) fn is_in_hit(&self) -> bool {
        self.is_busy() || self.context.depth() > 0 && !self.close_gone()
    }

    /// Notes that a handler of ours has been called with `context`. Pass the result to [`Interrupted::leave`]
    /// before the handler ends.
    #[inline]
    pub(crate) fn enter(&self, context: UContext) -> Outer {
        self.close_gone();
        self.interrupted.enter(context)
    }

    /// Lets a child use the block while its thread waits.
    pub(super) fn lend(&self) {
        self.wished.lend();
        self.lent.begin(sys::process_id());
        self.errno.begin_lending();
    }

    /// Closes what a child has left open that was lent the block and has gone; returns whether there was
    /// anything.
    #[inline]
    pub(super) fn close_gone(&self) -> bool {
        self.errno.is_lent() && self.close_lent()
    }

    #[cold]
    fn close_lent(&self) -> bool {
        if sys::is_confined() {
            // It may not ask.
            self.errno.end_lending();
            return false;
        }
        let process = sys::process_id();
        let runs = self.lent.look(process);
        match runs {
            Runs::Child | Runs::Lender => return false,
            Runs::Over => {}
            Runs::Again => {
                // SAFETY: the child is no more, and this thread, which has waited for that, has begun
                // nothing since.
                unsafe { self.context.reset() };
                self.interrupted.reset();
                self.deferral.reset();
                self.preparation.reset();
                self.errno.forget();
            }
        }
        self.errno.end_lending();
        if process != copy::process() {
            // A child that has lent the block itself has it of its own parent.
            self.lent.begin(copy::process());
            self.errno.begin_lending();
            self.lent.look(process);
        }
        runs == Runs::Again
    }

    /// Makes sure that the thread has an alternate stack. `false`: the handler runs on the interrupted stack
    /// and must return at once, to be called again on the new one.
    #[inline]
    pub(crate) fn ensure_altstack(&self, context: UContext) -> bool {
        self.stacks.ensure(context, &self.preparation)
    }

    /// Notes that thread `number`, the owner, is dead: another one has its thread pointer.
    #[cfg(any(feature = "mapped", all(test, target_arch = "x86_64", target_env = "gnu")))]
    #[cfg_attr(not(feature = "mapped"), allow(dead_code, reason = "tested in any case"))]
    pub(super) fn left_by(&self, number: u32) {
        self.owner.left_by(number);
    }

    /// Resets all that a dead thread has left, except the core's state.
    pub(super) fn reset(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.interrupted.reset();
        self.errno.reset();
        self.preparation.reset();
        self.deferral.reset();
        self.executing.reset();
        self.wished.reset();
        self.owner.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_never_used_is_as_new() {
        fn is_zero<T>(value: &T) -> bool {
            let words = core::ptr::from_ref(value).cast::<usize>();
            // Uninitialised cells are skipped: all that is initialised lies before and between them as whole
            // words. SAFETY: volatile reads of words inside the value; what is uninitialised reads as
            // anything, and is only compared in the mapping below, never here.
            (0..size_of::<T>() / size_of::<usize>())
                .all(|i| unsafe { words.wrapping_add(i).read_volatile() } == 0)
        }
        static CONTEXT: Context<Native> = Context::new();
        static TASK: Task<Native> = Task::new();
        assert!(is_zero(&CONTEXT) && is_zero(&TASK));
    }
}
