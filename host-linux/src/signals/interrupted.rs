//! The context that a handler of ours has interrupted: its mask, and the alternate stack that the program has
//! set.

use super::owned::BLOCKED;
use crate::arch::UContext;
use crate::sys::{AltStack, SignalSet};
use crate::threads;

/// Blocks all asynchronous signals in the interrupted thread and returns its mask before; `None` outside of a
/// handler.
pub(crate) fn block_asynchronous() -> Option<SignalSet> {
    let context = interrupted()?;
    // A signal that waits for the end of a jprobe's handler has left its mask: what runs now goes on in
    // the function.
    let mask = threads::current().and_then(|block| block.deferral.take_kept_mask()).unwrap_or(context.mask());
    context.set_mask(mask.union(BLOCKED));
    Some(mask)
}

/// Restores the mask that [`block_asynchronous`] has returned.
pub(crate) fn unblock_asynchronous(mask: SignalSet) {
    if let Some(context) = interrupted() {
        context.set_mask(mask);
    }
}

/// The alternate stack that the interrupted program has set, as the kernel would report it; `None` outside of
/// a handler.
pub(crate) fn interrupted_stack() -> Option<AltStack> {
    Some(threads::current()?.stacks.program_stack(interrupted()?))
}

/// Replaces that stack by `stack`; `false` if it cannot be kept.
pub(crate) fn set_interrupted_stack(stack: &AltStack) -> bool {
    let (Some(context), Some(block)) = (interrupted(), threads::current()) else { return false };
    block.stacks.set_program_stack(context, stack)
}

/// The context that the innermost of our handlers in this thread has interrupted.
pub(super) fn interrupted() -> Option<UContext> {
    threads::current()?.interrupted.innermost()
}
