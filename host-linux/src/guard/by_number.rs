//! Masks, actions and alternate stacks that a program changes by a number, through libc's `syscall`.
//!
//! No code of libc's tells these calls from others, so [`super`] has no probe on them. A function in the
//! place of libc's makes the call, outside of any hit, with what the program hands over where nothing of ours
//! is in it.

use crate::arch;
use crate::host::PROBES;
use crate::signals::{self, NEVER_BLOCKED, wished};
use crate::sys::{self, Action, SignalSet};
use crate::{Hit, memory};
use core::ffi::{c_int, c_long};
use probe_core::arch::Memory;
use probe_core::handler::Flow;
use probe_core::host::Host;

/// `syscall(SYS_rt_sigprocmask, how, set, old, len)`.
pub(super) fn before_mask(hit: &mut Hit<'_>) -> Flow {
    arch::enter(hit.regs_mut(), mask as *const () as usize);
    Flow::Redirected
}

/// `syscall(SYS_rt_sigaction, signal, new, old, len)`.
pub(super) fn before_action(hit: &mut Hit<'_>) -> Flow {
    arch::enter(hit.regs_mut(), action as *const () as usize);
    Flow::Redirected
}

/// `syscall(SYS_sigaltstack, new, old)`.
pub(super) fn before_stack(hit: &mut Hit<'_>) -> Flow {
    arch::enter(hit.regs_mut(), stack as *const () as usize);
    Flow::Redirected
}

/// `rt_sigaction(signal, new, old, len)`.
pub(super) fn change_action(
    &[signal, new, old, len]: &[usize; 4],
    read: &dyn Fn(usize, &mut [u8]) -> bool,
    write: &dyn Fn(usize, &[u8]) -> bool,
) -> Option<isize> {
    if len != size_of::<SignalSet>() {
        return None;
    }
    let signal = signal as c_int;
    let mut bytes = [0; size_of::<Action>()];
    if new != 0 && !read(new, &mut bytes) {
        return Some(-(libc::EFAULT as isize));
    }
    let new = (new != 0).then(|| Action::from_memory(bytes));
    let before = match signals::install_action(signal, new.as_ref()) {
        Ok(before) => before,
        Err(errno) => return Some(-(errno as isize)),
    };
    if old != 0 && !write(old, &before.to_memory()) {
        return Some(-(libc::EFAULT as isize));
    }
    Some(0)
}

/// Does not let the kernel block what a hit raises itself.
extern "C" fn mask(number: c_long, how: usize, set: usize, old: usize, len: usize) -> c_long {
    let (mut bytes, mut told) = ([0; size_of::<SignalSet>()], [0; size_of::<SignalSet>()]);
    if len != bytes.len() || set != 0 && memory::read_some(set, &mut bytes) != bytes.len() {
        return call(number, [how, set, old, len]);
    }
    let wanted = SignalSet::from_memory(bytes);
    let kept = if how as c_int == libc::SIG_UNBLOCK { 0 } else { NEVER_BLOCKED.bits() };
    let cleaned = SignalSet::from_bits(wanted.bits() & !kept).to_memory();
    let set = if set == 0 { 0 } else { cleaned.as_ptr().expose_provenance() };
    let answer = call(number, [how, set, told.as_mut_ptr().expose_provenance(), len]);
    if answer != 0 {
        return answer;
    }
    let ours = if set == 0 { wished::blocked() } else { wished::change(how as c_int, wanted) };
    let told = SignalSet::from_memory(told).union(ours).to_memory();
    if old != 0 && PROBES.host().memory().write(old, &told).is_err() {
        return failed(libc::EFAULT);
    }
    0
}

/// Keeps the action of one of our signals behind ours.
extern "C" fn action(number: c_long, signal: usize, new: usize, old: usize, len: usize) -> c_long {
    let arguments = [signal, new, old, len];
    let memory = PROBES.host().memory();
    let read = |at: usize, out: &mut [u8]| memory.read(at, out).is_ok();
    let write = |at: usize, bytes: &[u8]| memory.write(at, bytes).is_ok();
    match change_action(&arguments, &read, &write) {
        None => call(number, arguments),
        Some(0) => 0,
        Some(error) => failed(-error as c_int),
    }
}

/// Asks libc, whose own call the guard has a probe on.
extern "C" fn stack(_number: c_long, new: *const libc::stack_t, old: *mut libc::stack_t) -> c_long {
    // SAFETY: the program's own call.
    c_long::from(unsafe { libc::sigaltstack(new, old) })
}

fn call(number: c_long, arguments: [usize; 4]) -> c_long {
    // SAFETY: the program's own call.
    let result = unsafe { sys::call(number, arguments) };
    result.map_or_else(failed, |result| result as c_long)
}

/// Does what libc's `syscall` does with an errno.
fn failed(errno: c_int) -> c_long {
    // SAFETY: the calling thread's own.
    unsafe { sys::errno_location().write(errno) };
    -1
}
