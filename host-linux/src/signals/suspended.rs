//! Waits with another mask: what waits here and is open during such a wait comes before it.

use super::kept::{kept_block, waiting};
use super::owned::NEVER_BLOCKED;
use super::wished::{bring_all, set_blocked};
use crate::sys::SignalSet;

/// Lets the signals of `mask` be the blocked ones while `wait` waits, in place of those that are; `None`: one
/// that waited here has come instead, and the wait is over before it has begun (EINTR). Outside of handlers.
pub fn while_waiting<T>(mask: SignalSet, wait: impl FnOnce() -> T) -> Option<T> {
    let Some(block) = kept_block() else { return Some(wait()) };
    let outer = block.wished.blocked();
    set_blocked(block, mask);
    let is_due = waiting(block).bits() & !mask.bits() & NEVER_BLOCKED.bits() != 0;
    let done = if is_due {
        bring_all(block, SignalSet::from_bits(!mask.bits()));
        None
    } else {
        Some(wait())
    };
    set_blocked(block, outer);
    done
}
