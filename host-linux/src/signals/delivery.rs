//! The program's signals and faults: its handlers are called as the kernel would call them.
//!
//! The kernel chooses the stack. If it has called our handler on our alternate stack, and the program has
//! none, we take that stack away and raise the signal again: the kernel then delivers it where the program
//! expects it.

use super::installing::is_handler;
use super::owned::NEVER_BLOCKED;
use super::program::{action_of, exchange};
use super::recorded::Called;
use super::stack::{give_way, is_on_stack, leave, take_back};
use super::{waiting, wished};
use crate::arch::{Native, Regs, UContext, is_breakpoint_trap};
use crate::sys::{self, Action, SigInfo, SignalSet};
use crate::{memory, text, threads};
use core::ffi::c_int;
use probe_core::arch::Arch;

/// Whether a breakpoint still stands where `regs` say that one was hit.
#[cold]
pub(super) fn stands_at(regs: &Regs) -> bool {
    let mut insn = [0; 4];
    let at = Native::breakpoint_address(regs);
    let len = memory::read_some(Native::first_byte(at).as_usize(), &mut insn);
    Native::is_breakpoint(at, &insn[..len])
}

/// Hands a fault that the instruction at the program counter has raised to the program's action. Without a
/// handler of the program's the instruction faults once more, with the signal blocked: the kernel ends the
/// process by it, with its own siginfo and core, and without a system call of ours.
pub(super) fn refault(called: Called, info: &mut SigInfo, context: UContext) {
    let action = action_of(called.signal, called.version);
    let is_wanted = is_handler(action.handler) && !wished::blocked().has(called.signal);
    let is_repeated = FAULTS_AGAIN.contains(&info.code);
    let gives_up = |block: &threads::Block| block.stacks.give_up(context, is_on_stack(&action));
    if is_wanted && is_repeated && threads::current().is_some_and(gives_up) {
        return;
    }
    if is_wanted || !is_repeated {
        return deliver(called, info, context);
    }
    context.set_mask(context.mask().with(called.signal));
}

/// The codes of faults that an instruction raises whenever it is run. Others may come from the kernel: for a
/// signal frame that it cannot use, or for bad memory.
const FAULTS_AGAIN: core::ops::RangeInclusive<c_int> = 1..=2;

/// Hands a trap to the program's action: as [`refault`] if somebody else's breakpoint has raised it.
pub(super) fn deliver_trap(called: Called, info: &mut SigInfo, context: UContext) {
    let is_wanted = action_of(called.signal, called.version).handler != libc::SIG_DFL
        && !wished::blocked().has(called.signal);
    if is_wanted || !is_breakpoint_trap(info.code) || !stands_at(&context.load_regs()) {
        return deliver(called, info, context);
    }
    context.rewind_breakpoint();
    context.set_mask(context.mask().with(called.signal));
}

/// Hands a signal to the program's action, if the program has not blocked it: then one that was sent waits,
/// and one that was raised ends the process, as the kernel does both.
pub(super) fn deliver(called: Called, info: &mut SigInfo, context: UContext) {
    if info.code <= 0 {
        waiting::begin_again(context);
        if wished::keep(info, context) {
            return;
        }
    }
    if info.code > 0 && wished::blocked().has(info.signal) {
        return die(info, context);
    }
    let action = action_of(called.signal, called.version);
    match action.handler {
        libc::SIG_IGN if info.code <= 0 => {}
        // The kernel, too, does not let a program ignore a fault that it has raised.
        libc::SIG_DFL | libc::SIG_IGN => die(info, context),
        _ if info.code <= 0 && give_way(info, context, &action) => {}
        handler => call(handler, &action, called, info, context),
    }
}

/// Calls the program's handler as the kernel would have.
fn call(handler: usize, action: &Action, called: Called, info: &mut SigInfo, context: UContext) {
    let Called { signal, entries, .. } = called;
    take_back(signal, context);
    let flags = action.flags as c_int;
    if flags & libc::SA_RESETHAND != 0 {
        exchange(signal, entries, Some(&action.used_up()));
    }
    let own = if flags & libc::SA_NODEFER == 0 { action.mask.with(signal) } else { action.mask };
    // SIGILL and SIGFPE, too: a hit raises neither.
    let mask = SignalSet::from_bits(context.mask().union(own).bits() & !NEVER_BLOCKED.bits());
    let handler = || {
        sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
        // SAFETY: the program has given this function to be called at this signal; `info` is the kernel's.
        unsafe { context.call_handler(handler, signal, info) };
        // What is sent from now on comes behind the signal return, not on top of this.
        sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
    };
    wished::in_handler(context, own, handler);
    leave(context);
}

/// Lets the kernel end the process with this signal, as soon as the handler has returned to the registers in
/// `context`.
#[cold]
fn die(info: &SigInfo, context: UContext) {
    let signal = info.signal;
    // SAFETY: the default action needs no handler.
    let _ = unsafe { sys::sigaction(signal, Some(&Action::DEFAULT)) };
    sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
    if text::is_unprotecting() {
        // QEMU mistakes a queued fault for one of its own.
        sys::send_to_self(signal);
    } else {
        sys::queue_to_self(info);
    }
    context.set_mask(context.mask().without(signal));
}
