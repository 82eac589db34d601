//! One thread's state, composed: each part owns its fields.

use super::altstack::Stacks;
use super::deferral::Deferral;
use super::errno::Errno;
use super::executing::Executing;
use super::fault::LastFault;
use super::free::Link;
use super::interrupted::Interrupted;
use super::owner::Owner;
use super::preparation::Preparation;
use super::wished::Wished;
use crate::arch::{Native, UContext};
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_core::host::{Context, Task};

/// A thread's words for the embedding program.
pub type Words = [AtomicUsize; 4];

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
        self.interrupted.innermost().is_some() || self.errno.is_kept()
    }

    /// Whether a hit is being handled, or a step is under way.
    pub(crate) fn is_in_hit(&self) -> bool {
        self.is_busy() || self.context.depth() > 0
    }

    /// Makes sure that the thread has an alternate stack. `false`: the handler runs on the interrupted stack
    /// and must return at once, to be called again on the new one.
    #[inline]
    pub(crate) fn ensure_altstack(&self, context: UContext) -> bool {
        self.stacks.ensure(context, &self.preparation)
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
