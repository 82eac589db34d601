//! Signals that the kernel has delivered on our alternate stack, delivered again on the stack that the
//! program has set.

use super::queue::queue_in_front;
use crate::arch::UContext;
use crate::sys::{self, Action, SigInfo, SignalSet};
use crate::{text, threads};
use core::ffi::c_int;

/// Makes the kernel deliver `info`'s signal again on the program's stack; `false` if it has to be handled
/// where it is.
pub(super) fn give_way(info: &SigInfo, context: UContext, action: &Action) -> bool {
    // An emulator does not send all of a siginfo again.
    if text::is_unprotecting() || sys::is_confined() {
        return false;
    }
    let Some(block) = threads::current() else { return false };
    let mask = context.mask();
    let has_ended_wait = mask.with(info.signal) == mask;
    if has_ended_wait && block.deferral.has_wait() || !block.stacks.give_up(context, is_on_stack(action)) {
        return false;
    }
    // The signal return brings the interrupted mask back.
    let own = sys::sigprocmask(libc::SIG_BLOCK, Some(SignalSet::ALL));
    if !queue_in_front(info) {
        sys::sigprocmask(libc::SIG_SETMASK, Some(own));
        return false;
    }
    if has_ended_wait {
        block.deferral.keep_wait(info.signal, mask);
        context.set_mask(mask.without(info.signal));
    }
    true
}

/// Ends what [`give_way`] began, when the signal has come again: the program's handler finds its own
/// alternate stack.
pub(super) fn take_back(signal: c_int, context: UContext) {
    let Some(block) = threads::current() else { return };
    if let Some(mask) = block.deferral.take_wait(signal) {
        context.set_mask(mask);
    }
    block.stacks.show_program_stack(context);
}

/// Ends what [`take_back`] began, when the program's handler has returned.
pub(super) fn leave(context: UContext) {
    if let Some(block) = threads::current() {
        block.stacks.keep_ours(context);
    }
}

/// Whether the program wants its handler to run on its alternate stack.
pub(super) const fn is_on_stack(action: &Action) -> bool {
    action.flags as c_int & libc::SA_ONSTACK != 0
}
