//! `sigwait` and its like, of a libc that makes all calls that wait at one place, where they cannot be told
//! (musl).
//!
//! The call is made by a function in the place of libc's, outside of any hit, with what the program blocks
//! really blocked.

use crate::signals::{execution, waiting};
use crate::{Hit, arch, sys};
use core::ffi::{c_int, c_long};
use probe_core::handler::Flow;

unsafe extern "C" {
    fn pthread_testcancel();
}

/// The function that all of them call. On 32-bit machines it is the one with 64 bits of time.
pub(super) const FUNCTION: &str =
    if cfg!(target_pointer_width = "64") { "sigtimedwait" } else { "__sigtimedwait_time64" };

/// Its system call.
const NUMBER: c_long = waiting::WAITS[if cfg!(target_pointer_width = "64") { 0 } else { 1 }];

/// `sigtimedwait(set, info, time)`.
pub(super) fn before_wait(hit: &mut Hit<'_>) -> Flow {
    if hit.argument(0).and_then(waiting::wanted).is_none() {
        return Flow::Continue;
    }
    arch::enter(hit.regs_mut(), wait as *const () as usize);
    Flow::Redirected
}

extern "C-unwind" fn wait(set: usize, info: usize, time: usize) -> c_int {
    loop {
        // SAFETY: nothing of ours is to be undone.
        unsafe { pthread_testcancel() };
        let arguments = [set, info, time, size_of::<sys::SignalSet>(), 0];
        // SAFETY: the program's own call.
        let answer = waiting::waiting_for(set, || unsafe { execution::call_as_blocked(NUMBER, arguments) });
        match answer {
            // As musl does.
            Err(libc::EINTR) => {}
            Ok(signal) => return signal as c_int,
            Err(errno) => return sys::fail(errno),
        }
    }
}
