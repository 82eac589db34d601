//! Leaving a process, as if it had never been probed.
//!
//! A fork's child calls this that a debugger is about to attach to, because a debugger sees every trap before
//! the process does. The child's text is its own, so its parent's probes stay.

use crate::arch::{self, Regs};
use crate::host::PROBES;
use crate::sys::SignalSet;
use crate::{signals, sys, threads};
use probe_core::Switch;
use probe_core::error::SwitchError;

/// The highest signal.
const LAST_SIGNAL: core::ffi::c_int = 64;

/// Removes every breakpoint and jump from this process's text and gives the kernel what it would have bare:
/// the program's actions, the calling thread's alternate stack, its descriptors. Call it outside of handlers,
/// where no other thread runs. Calls that are followed still return to their callers, unseen.
///
/// # Errors
/// As [`Probes::switch`](probe_core::Probes::switch); all that can be done is done.
pub fn leave() -> Result<(), SwitchError> {
    let done = PROBES.switch(Switch::Off);
    give_actions_back();
    signals::wished::leave();
    if let Some(block) = threads::current() {
        block.stacks.put_back();
    }
    PROBES.host().text.close();
    done
}

/// The program's actions are the kernel's again.
fn give_actions_back() {
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: asks only.
        let Ok(kernel) = (unsafe { sys::sigaction(signal, None) }) else { continue };
        if let Ok(program) = signals::install_action(signal, None)
            && program.handler != kernel.handler
        {
            // SAFETY: the program's own action, for the signals that it has asked to get there.
            let _ = unsafe { sys::sigaction(signal, Some(&program)) };
        }
    }
}

/// The first part of [`leave`] in a process of several threads, which runs in one of them: from then on
/// nothing is hit that is not hit already.
///
/// # Errors
/// As [`leave`].
pub fn leave_text() -> Result<(), SwitchError> {
    let done = PROBES.switch(Switch::Off);
    PROBES.host().text.close();
    done
}

/// The second part, which runs in each thread, none of which is in a hit: gives back its alternate stack and
/// what waits for it, and returns what its program has blocked and the kernel must again.
pub fn leave_thread() -> SignalSet {
    let Some(block) = threads::current() else { return SignalSet::EMPTY };
    block.stacks.put_back();
    signals::wished::leave_thread()
}

/// The last part.
pub fn leave_actions() {
    give_actions_back();
    signals::wished::stop();
}

/// Turns the entry of a function into that of `function`, a pointer to a function that takes the same
/// arguments.
#[doc(hidden)]
pub fn lead_to(regs: &mut Regs, function: *const ()) {
    arch::enter(regs, function as usize);
}
