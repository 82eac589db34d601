//! `sigwait` and its like, of a libc that makes all calls that wait at one place, where they cannot be told
//! (musl).
//!
//! The call is made by a function in the place of libc's, outside of any hit, with what the program blocks
//! really blocked.

use crate::signals::{blocked_wait, waiting};
use crate::sys::{self, SignalSet};
use crate::{Hit, arch};
use core::ffi::{c_int, c_long};
use probe_core::arch::Memory;
use probe_core::handler::Flow;
use probe_core::host::Host;

unsafe extern "C" {
    fn pthread_testcancel();
}

/// The function that all of them call. On 32-bit machines it is the one with 64 bits of time.
pub(super) const FUNCTION: &str =
    if cfg!(target_pointer_width = "64") { "sigtimedwait" } else { "__sigtimedwait_time64" };

/// Its system call.
const NUMBER: c_long = waiting::WAITS[if cfg!(target_pointer_width = "64") { 0 } else { 1 }];

/// Musl's signal by which a thread is cancelled. Its handler knows musl's own calls: another one that it
/// interrupts before the kernel sleeps would sleep. So it ends the wait as what is waited for.
const CANCELS: SignalSet = SignalSet::EMPTY.with(33);

/// `sigtimedwait(set, info, time)`.
pub(super) fn before_wait(hit: &mut Hit<'_>) -> Flow {
    if hit.argument(0).and_then(waiting::wanted).is_none() {
        return Flow::Continue;
    }
    arch::enter(hit.regs_mut(), wait as *const () as usize);
    Flow::Redirected
}

extern "C-unwind" fn wait(set: usize, info: usize, time: usize) -> c_int {
    let Some(all) = waiting::wanted(set) else { return sys::fail(libc::EFAULT) };
    loop {
        // SAFETY: nothing of ours is to be undone.
        unsafe { pthread_testcancel() };
        match blocked_wait::wait(NUMBER, all, CANCELS, time) {
            // As musl does.
            Err(libc::EINTR) => {}
            Err(errno) => return sys::fail(errno),
            Ok(taken) => {
                let memory = crate::host::PROBES.host().memory();
                let is_told = info == 0 || memory.write(info, &taken.to_memory()).is_ok();
                return if is_told { taken.signal } else { sys::fail(libc::EFAULT) };
            }
        }
    }
}
