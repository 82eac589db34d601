//! Which signals are ours, and which must not be blocked.

use crate::arch::UContext;
use crate::sys::SignalSet;
use core::ffi::c_int;

/// The signals whose kernel action is ours.
pub const OWNED: [c_int; 5] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The [`OWNED`] signals as a set.
pub const OWNED_SET: SignalSet =
    SignalSet::EMPTY.with(OWNED[0]).with(OWNED[1]).with(OWNED[2]).with(OWNED[3]).with(OWNED[4]);

/// The [`OWNED`] signals that a hit raises itself, by the breakpoint and in copies that may fault: they must
/// not be blocked. The others matter only where a probed instruction faults.
pub(crate) const NEVER: [c_int; 3] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS];

/// The [`OWNED`] signals that a hit raises itself, which must not be blocked, as a set.
pub const NEVER_BLOCKED: SignalSet = SignalSet::EMPTY.with(NEVER[0]).with(NEVER[1]).with(NEVER[2]);

/// The signals that are blocked while a handler of ours runs: all but those that its own work may raise.
pub(crate) const BLOCKED: SignalSet = SignalSet::from_bits(!OWNED_SET.bits());

/// Runs a handler of the program's, which may write into its `context` what is to be blocked behind it.
/// Signals that must not be blocked stay unblocked.
pub(crate) fn run_in(context: UContext, handler: impl FnOnce()) {
    let before = context.mask();
    handler();
    let never = NEVER_BLOCKED.bits() & !before.bits();
    context.set_mask(SignalSet::from_bits(context.mask().bits() & !never));
}
