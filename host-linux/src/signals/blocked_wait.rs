//! Threads that wait for signals with what the program blocks really blocked: one of ours that comes
//! meanwhile is pending in the kernel. For a libc whose calls that wait cannot be told from others.

use super::execution::call_blocking;
use super::kept::{bring_by_knock, is_knock, kept_block, look};
use super::owned::NEVER_BLOCKED;
use crate::sys::{SigInfo, SignalSet};
use core::ffi::{c_int, c_long, c_void};

/// Waits for the signals of `all`, and of `instead`, by system call `number` of
/// [`WAITS`](super::waiting::WAITS), at most for the `time` there. Not during a hit.
///
/// # Errors
/// The errno: EINTR, too, where one of `instead` has come.
pub(crate) fn wait(
    number: c_long,
    all: SignalSet,
    instead: SignalSet,
    time: usize,
) -> Result<SigInfo, c_int> {
    let (set, mut info) = (all.union(instead), SigInfo::fault(0, 0, 0));
    let at = |what: *const c_void| what.expose_provenance();
    let arguments =
        [at((&raw const set).cast()), at((&raw mut info).cast()), time, size_of::<SignalSet>(), 0];
    let ours = SignalSet::from_bits(all.bits() & NEVER_BLOCKED.bits());
    let block = kept_block();
    let waited = call_blocking(instead, |call| {
        let wait = block.map(|block| (block, block.wished.wait.begin_blocked(ours)));
        let here = wait.and_then(|(block, noted)| look(block, ours, &noted));
        // SAFETY: the set and the siginfo live through the call; the time is the program's.
        let answer = here.map_or_else(|| unsafe { call.make(number, arguments) }.map(|_| info), Ok);
        block.inspect(|block| block.wished.wait.end());
        answer
    });
    // What is no answer.
    match (waited, block) {
        (Ok(info), Some(block)) if is_knock(&info) => bring_by_knock(block),
        (Ok(info), _) if instead.has(info.signal) && !all.has(info.signal) => {}
        _ => return waited,
    }
    Err(libc::EINTR)
}
