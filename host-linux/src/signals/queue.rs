//! Makes a signal pending again, in its order.
//!
//! A handler may stand on an alternate stack of the least size: nothing here keeps more than one signal.

use super::kept::WITH_VALUE;
use crate::sys::{self, SigInfo};
use core::ffi::c_int;

/// The first signal of which several can be pending.
const FIRST_QUEUED: c_int = 32;

/// Makes a signal pending in this thread, before those of the same number that already are: real-time signals
/// arrive in the order in which they were sent. All signals are blocked.
pub(super) fn queue_in_front(info: &SigInfo) -> bool {
    // Those that are pending are queued once more, behind this one, until the mark comes.
    let mark = SigInfo::fault(info.signal, WITH_VALUE, (&raw const MARK).expose_provenance());
    let is_marked = info.signal >= FIRST_QUEUED && sys::queue_to_self(&mark);
    let is_queued = sys::queue_to_self(info);
    while is_marked
        && let Some(pending) = sys::take_pending(info.signal)
        && (pending.code, pending.addr) != (mark.code, mark.addr)
    {
        sys::queue_to_self(&pending);
    }
    is_queued
}

/// Its address is no sender's.
static MARK: u8 = 0;
