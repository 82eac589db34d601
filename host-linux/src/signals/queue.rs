//! Makes a signal pending again, in its order.

use crate::sys::{self, SigInfo};
use core::ffi::c_int;

/// The first signal of which several can be pending.
const FIRST_QUEUED: c_int = 32;

/// How many pending signals of one number keep their order when one before them waits for a hit.
const MOST_QUEUED: usize = 32;

/// Makes a signal pending in this thread, before those of the same number that already are: real-time signals
/// arrive in the order in which they were sent. All signals are blocked.
pub(super) fn queue_in_front(info: &SigInfo) -> bool {
    let mut behind = [const { SigInfo::fault(0, 0, 0) }; MOST_QUEUED];
    let mut count = 0;
    if info.signal >= FIRST_QUEUED {
        for room in &mut behind {
            let Some(pending) = sys::take_pending(info.signal) else { break };
            *room = pending;
            count += 1;
        }
    }
    let is_queued = sys::queue_to_self(info);
    behind.iter().take(count).for_each(|pending| {
        sys::queue_to_self(pending);
    });
    is_queued
}
