//! Signals and faults that are the program's: its handlers are called as the kernel would have.
//!
//! The kernel chooses the stack. If it has called our handler on our alternate stack, and the program has none, we take
//! that stack away and raise the signal again: the kernel then delivers it where the program expects it.

use super::deferral::queue_in_front;
use super::owned::{BLOCKED, NEVER_BLOCKED, OWNED_SET};
use super::recorded::{FIRST, Version};
use super::{SEGV_MAPERR, action_of, entries_of, offer_fault, program_action, stands_at};
use crate::arch::{UContext, is_breakpoint_trap};
use crate::sys::{self, Action, SigInfo, SignalSet};
use crate::{text, threads};
use core::ffi::{c_int, c_void};
use probe_core::FaultVerdict;
use probe_core::arch::{Access, MemFault};

/// Raises the fault of a simulated access in the program, as the instruction itself would have.
pub(super) fn raise(fault: MemFault, context: UContext, block: Option<&threads::Block>) {
    // The fault-free copy has really faulted: what the kernel said then is what it would say now.
    let mut info = block
        .map_or_else(|| SigInfo::fault(libc::SIGSEGV, SEGV_MAPERR, fault.addr), |block| block.fault.info());
    context.set_fault(info.addr, fault.access == Access::Write);
    if offer_fault(info.signal, &mut info, context, block) != FaultVerdict::Handled {
        // Nothing has been delivered to an entry that would tell the version.
        // SAFETY: asks only.
        let now = unsafe { sys::sigaction(info.signal, None) };
        let version = now.ok().and_then(|now| entries_of(info.signal).version(now.handler));
        deliver(info.signal, version.unwrap_or(FIRST), &mut info, context);
    }
}

/// Hands a fault to the program's action that its own instruction has raised, which stands where the program counter is. Where nobody
/// wants it the instruction faults once more, with the signal blocked: then the kernel ends the process by it, with
/// its own siginfo and core, and no system call of ours.
pub(super) fn refault(signal: c_int, version: Version, info: &mut SigInfo, context: UContext) {
    let is_wanted = !matches!(action_of(signal, version).handler, libc::SIG_DFL | libc::SIG_IGN);
    let is_repeated = FAULTS_AGAIN.contains(&info.code);
    if is_wanted && is_repeated && threads::current().is_some_and(|block| block.stacks.give_up(context)) {
        return;
    }
    if is_wanted || !is_repeated {
        return deliver(signal, version, info, context);
    }
    context.set_mask(context.mask().with(signal));
}

/// The codes of faults that an instruction raises whenever it is run. Others may be the kernel's: for a signal frame that it cannot use,
/// for memory that has gone bad.
const FAULTS_AGAIN: core::ops::RangeInclusive<c_int> = 1..=2;

/// Hands a trap to the program's action. As [`refault`] where a breakpoint of somebody else's has raised it.
pub(super) fn deliver_trap(version: Version, info: &mut SigInfo, context: UContext) {
    let is_wanted = action_of(libc::SIGTRAP, version).handler != libc::SIG_DFL;
    if is_wanted || !is_breakpoint_trap(info.code) || !stands_at(&context.load_regs()) {
        return deliver(libc::SIGTRAP, version, info, context);
    }
    context.rewind_breakpoint();
    context.set_mask(context.mask().with(libc::SIGTRAP));
}

/// Hands a signal to the program's action.
pub(super) fn deliver(signal: c_int, version: Version, info: &mut SigInfo, context: UContext) {
    let action = action_of(signal, version);
    match action.handler {
        libc::SIG_IGN if info.code <= 0 => {}
        // The kernel, too, does not let a program ignore a fault that it has raised.
        libc::SIG_DFL | libc::SIG_IGN => die(info, context),
        _ if info.code <= 0 && give_way(info, context) => {}
        handler => call(handler, &action, signal, info, context),
    }
}

/// Calls the program's handler as the kernel would have.
fn call(handler: usize, action: &Action, signal: c_int, info: &mut SigInfo, context: UContext) {
    take_back(signal, context);
    let flags = action.flags as c_int;
    if flags & libc::SA_RESETHAND != 0 {
        program_action(signal, Some(&action.used_up()));
    }
    let mut mask = context.mask().union(action.mask);
    if flags & libc::SA_NODEFER == 0 {
        mask = mask.with(signal);
    }
    let ours = OWNED_SET.bits() & (NEVER_BLOCKED.bits() | !context.mask().bits());
    let mask = SignalSet::from_bits(mask.bits() & !ours);
    sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    // SAFETY: the program has given this function to be called with these arguments at this signal.
    let handler = unsafe {
        core::mem::transmute::<usize, unsafe extern "C" fn(c_int, *mut SigInfo, *mut c_void)>(handler)
    };
    // SAFETY: as above; `info` and `context` are the kernel's own frame, still live.
    unsafe { handler(signal, info, context.as_ptr()) };
    sys::sigprocmask(libc::SIG_BLOCK, Some(BLOCKED));
}

/// Lets the kernel end the process with this signal, as soon as the handler has returned to the registers in `context`.
#[cold]
fn die(info: &SigInfo, context: UContext) {
    let signal = info.signal;
    // SAFETY: the default action needs no handler.
    let _ = unsafe { sys::sigaction(signal, Some(&Action::DEFAULT)) };
    sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
    if text::is_unprotecting() {
        // QEMU takes a queued fault for one of its own.
        sys::send_to_self(signal);
    } else {
        sys::queue_to_self(info);
    }
    context.set_mask(context.mask().without(signal));
}

/// Has `info`'s signal come again on the stack that the program has given it; `false`: it is to be handled where it is.
pub(super) fn give_way(info: &SigInfo, context: UContext) -> bool {
    // An emulator does not send all of a siginfo again.
    if text::is_unprotecting() {
        return false;
    }
    let Some(block) = threads::current() else { return false };
    let mask = context.mask();
    let has_ended_wait = mask.with(info.signal) == mask;
    if has_ended_wait && block.deferral.has_wait() || !block.stacks.give_up(context) {
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

/// Ends what [`give_way`] began: the signal has come again. What the program's handler finds of its alternate stack is its own.
pub(super) fn take_back(signal: c_int, context: UContext) {
    let Some(block) = threads::current() else { return };
    if let Some(mask) = block.deferral.take_wait(signal) {
        context.set_mask(mask);
    }
    block.stacks.show_program_stack(context);
}
