//! The signals that probes live on, and the program's own handlers behind them.
//!
//! SIGTRAP, SIGSEGV, SIGBUS, SIGILL and SIGFPE are ours ([`OWNED`]): installed with SA_SIGINFO, SA_NODEFER (a
//! hit inside a handler must not kill the process) and SA_ONSTACK. All other signals are kept away meanwhile,
//! by the handler's mask or by `deferral`; those of ours that are sent, by `beginning`. A signal that is not
//! about a probe goes on to the program's
//! action, called exactly as the kernel would have called it: mask, SA_NODEFER, SA_RESETHAND, siginfo and the
//! untouched `ucontext_t`. The default action ends the process with that signal, its siginfo and its core,
//! with the registers of the faulting instruction.
//!
//! What the program had installed before `start` is its action. What it installs later would replace our
//! handlers; an agent interposes `sigaction` and `signal` and calls [`program_action`] instead, and takes
//! [`OWNED`] out of the masks that the program sets: a synchronous signal that is blocked kills the process.
//!
//! A trap is ours only if the kernel raised it for a breakpoint instruction (`si_code`) and the core knows
//! the place: a `kill -TRAP`, a debugger's step or the program's own breakpoints never get here.

mod beginning;
pub(crate) mod blocked_wait;
mod deferral;
mod delivery;
pub(crate) mod execution;
mod installing;
pub(crate) mod interrupted;
mod kept;
pub(crate) mod owned;
mod program;
mod queue;
mod recorded;
mod stack;
mod suspended;
mod traps;
pub(crate) mod waiting;
pub(crate) mod wished;
pub(crate) mod writer;

pub(crate) use self::installing::{hold, release};
pub use self::owned::{NEVER_BLOCKED, OWNED, OWNED_SET};
pub use self::suspended::while_waiting;
pub use self::wished::{adopt, adopt_mask, give_mask_back};

use self::installing::installing;
use self::program::our_action;
use self::recorded::{Begins, FIRST};
use self::traps::entries_of;
use crate::sys::{self, Action};
use core::ffi::c_int;

/// Installs our handlers; what was there before becomes the program's action.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub(crate) fn start() -> Result<(), c_int> {
    for signal in OWNED {
        // SAFETY: asks only.
        let before = unsafe { sys::sigaction(signal, None) }?;
        if entries_of(signal).version(before.handler).is_none() {
            program::keep(signal, &before);
            // SAFETY: the handlers below may run at any moment: all they need is static.
            unsafe { sys::sigaction(signal, Some(&our_action(signal, entries_of(signal), FIRST))) }?;
        }
    }
    Ok(())
}

/// Whether our handler is still the kernel's action for every owned signal.
pub fn are_installed() -> bool {
    OWNED.iter().all(|&signal| {
        // SAFETY: asks only.
        let now = unsafe { sys::sigaction(signal, None) };
        now.is_ok_and(|now| entries_of(signal).version(now.handler).is_some())
    })
}

/// Lets asynchronous signals wait for the end of a hit without being blocked during it (`deferral`), and ours
/// that are sent for the end of one that is being handled (`beginning`). Whoever calls this calls
/// [`install_action`] at every `rt_sigaction` of the program's from now on.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub fn defer_asynchronous() -> Result<(), c_int> {
    let defers = deferral::start();
    begin(Begins::Quiet, !defers)
}

/// Lets our handlers begin `begins` from now on, and asynchronous signals be blocked while SIGTRAP is
/// handled, if `block`.
fn begin(begins: Begins, block: bool) -> Result<(), c_int> {
    beginning::set(begins, block, renew_traps);
    installing(|| {
        OWNED.into_iter().try_for_each(|signal| {
            let instead = (signal == libc::SIGTRAP).then_some(FIRST);
            program::renew(signal, entries_of(signal), instead)
        })
    })
}

/// Installs the handler of SIGTRAP once more, if it is ours.
fn renew_traps() {
    // The kernel refuses no action that it has taken before.
    let _ = program::renew(libc::SIGTRAP, entries_of(libc::SIGTRAP), None);
}

/// Prepares for a filter of system calls, which the program is about to install. A signal cannot be sent once
/// more then: asynchronous signals are blocked during a trap, and come in the middle of a hit by a jump. The
/// guard calls this.
pub(crate) fn confine() {
    sys::confine();
    // The kernel refuses no action that it has taken before.
    let _ = begin(Begins::Open, true);
}

/// Undoes [`defer_asynchronous`]: asynchronous signals are blocked during a trap again, and not during a hit
/// by a jump.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub fn block_during_traps() -> Result<(), c_int> {
    begin(Begins::Open, true)?;
    deferral::stop();
    wished::stop();
    Ok(())
}

/// Reads the program's own action for any signal, and replaces it if `new` is given; returns the one before.
/// An agent calls it in place of `rt_sigaction`.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub fn install_action(signal: c_int, new: Option<&Action>) -> Result<Action, c_int> {
    if OWNED.contains(&signal) { Ok(program_action(signal, new)) } else { deferral::install(signal, new) }
}

/// Reads the program's own action for one of the [`OWNED`] signals, and replaces it if `new` is given;
/// returns the one before.
///
/// An agent calls it in place of `sigaction`. For other signals it does nothing and returns the default
/// action.
pub fn program_action(signal: c_int, new: Option<&Action>) -> Action {
    program::exchange(signal, entries_of(signal), new)
}
