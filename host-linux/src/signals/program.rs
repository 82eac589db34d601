//! The program's actions for the signals that are ours.

use super::installing::{NOT_OURS, as_told, installing, is_handler};
use super::owned::OWNED;
use super::recorded::{FIRST, OwnEntries, Version, Versions};
use super::{beginning, wished};
use crate::arch::{RESTORER_FLAG, restorer};
use crate::sys::{self, Action, Restorer};
use core::ffi::c_int;

/// The program's actions for the signals of [`OWNED`], in that order.
static PROGRAM: [Versions; OWNED.len()] = [const { Versions::new() }; OWNED.len()];

fn versions_of(signal: c_int) -> Option<&'static Versions> {
    OWNED.iter().position(|&owned| owned == signal).map(|at| &PROGRAM[at])
}

/// The program's action.
pub(super) fn action_of(signal: c_int, version: Version) -> Action {
    versions_of(signal).map_or(Action::DEFAULT, |versions| versions.read(version))
}

/// Whether one of the program's actions ignores `signal`, be it in force or not.
pub(super) fn may_ignore(signal: c_int) -> bool {
    versions_of(signal).is_some_and(|versions| versions.any(|action| action.handler == libc::SIG_IGN))
}

/// Keeps what was there before ours as the program's.
pub(super) fn keep(signal: c_int, before: &Action) {
    if let Some(versions) = versions_of(signal) {
        versions.write(FIRST, before);
    }
}

/// The kernel's action whose handler calls the program's action of this version.
pub(super) fn our_action(signal: c_int, entries: &OwnEntries, version: Version) -> Action {
    let program = action_of(signal, version);
    let begins = beginning::of(signal, &program);
    let ours = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
    // A signal that no handler of the program's takes ends no system call: it does not come, or ends the
    // process.
    let restart = if is_handler(program.handler) { 0 } else { libc::SA_RESTART };
    Action {
        handler: entries.address(version, begins),
        flags: program.flags & !NOT_OURS | (ours | restart) as usize | RESTORER_FLAG,
        restorer: Restorer::new(restorer()),
        mask: beginning::mask(signal, begins),
    }
}

/// Installs our handler of `signal` once more, as it is to begin from now on. Where it is not ours, the one
/// of version `instead`. Called by `installing`.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub(super) fn renew(signal: c_int, entries: &OwnEntries, instead: Option<Version>) -> Result<(), c_int> {
    // SAFETY: asks only.
    let kernel = unsafe { sys::sigaction(signal, None) }?;
    let Some(version) = entries.version(kernel.handler).or(instead) else { return Ok(()) };
    // SAFETY: a handler of ours: all that it needs is static.
    unsafe { sys::sigaction(signal, Some(&our_action(signal, entries, version))) }.map(drop)
}

/// Reads the program's own action for one of the [`OWNED`] signals, and replaces it if `new` is given;
/// returns the one before. `entries` are our handlers of that signal.
pub(super) fn exchange(signal: c_int, entries: &OwnEntries, new: Option<&Action>) -> Action {
    let Some(versions) = versions_of(signal) else { return Action::DEFAULT };
    installing(|| {
        // SAFETY: asks only.
        let Ok(kernel) = (unsafe { sys::sigaction(signal, None) }) else { return Action::DEFAULT };
        let version = entries.version(kernel.handler);
        let before = version.map_or(kernel, |version| as_told(versions.read(version), &kernel));
        if let Some(new) = new {
            let next = version.map_or(FIRST, Version::next);
            versions.write(next, new);
            if new.handler == libc::SIG_IGN {
                wished::drop_pending(signal);
            }
            // SAFETY: a handler of ours: all that it needs is static.
            let _ = unsafe { sys::sigaction(signal, Some(&our_action(signal, entries, next))) };
        }
        before
    })
}
