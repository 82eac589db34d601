//! Threads that are stopped in a wait with a signal mask of its own: the call begins again, and is led to a
//! mask that lets breakpoints be; a thread that is left goes on with its own.
//!
//! A place on the agent's stack, which stays as long as the agent, has the mask, the address of the program's
//! own, and for `pselect6` the structure that leads to the mask.

use super::memory;
use libc::{c_long, pid_t, user_regs_struct};
use std::io;
use std::ops::Range;

/// The signals that hits raise.
pub(super) const OURS: u64 = 1 << (libc::SIGTRAP - 1) | 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);

/// The bytes of a place.
pub(super) const PLACE_LEN: usize = 32;

/// Where in a place the structure is.
const STRUCTURE: usize = 16;

/// What the kernel returns to itself of a call that begins again: `ERESTARTSYS` to `ERESTART_RESTARTBLOCK`.
const AGAIN: Range<i64> = -516..-511;

/// How a call has its mask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By its address.
    Address,
    /// By the address of a structure with its address and its length.
    Structure,
}

/// The register that leads to the mask of the wait that the thread will begin again.
fn register(pid: pid_t, regs: &mut user_regs_struct) -> Option<(&mut u64, By)> {
    let begins = regs.orig_rax == u64::MAX && {
        let mut code = [0; 2];
        memory::read(pid, regs.rip as usize, &mut code).is_ok() && code == [0x0f, 0x05]
    };
    let number = if begins { regs.rax } else { regs.orig_rax };
    if !begins && !AGAIN.contains(&(regs.rax as i64)) {
        return None;
    }
    match number as c_long {
        libc::SYS_rt_sigsuspend => Some((&mut regs.rdi, By::Address)),
        libc::SYS_ppoll => Some((&mut regs.r10, By::Address)),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some((&mut regs.r8, By::Address)),
        libc::SYS_pselect6 => Some((&mut regs.r9, By::Structure)),
        _ => None,
    }
}

/// Leads the wait of a stopped thread to a clean mask at `place`; whether that was needed.
///
/// # Errors
/// The memory cannot be written.
pub(super) fn clean(pid: pid_t, regs: &mut user_regs_struct, place: usize) -> io::Result<bool> {
    let Some((leads, by)) = register(pid, regs) else { return Ok(false) };
    let own = *leads as usize;
    let at = if by == By::Structure { memory::read_word(pid, own).unwrap_or(0) } else { own };
    // What cannot be read the kernel refuses itself.
    let Some(mask) = (at != 0).then(|| memory::read_word(pid, at)).flatten() else { return Ok(false) };
    if mask as u64 & OURS == 0 {
        return Ok(false);
    }
    let words = [mask & !(OURS as usize), own, place, size_of::<u64>()];
    memory::write(pid, place, &words.map(usize::to_ne_bytes).concat())?;
    *leads = if by == By::Structure { place + STRUCTURE } else { place } as u64;
    Ok(true)
}

/// Leads a wait that [`clean`] has led elsewhere, or a probe of the agent's (`agent/waits`), to its own mask
/// again; whether the registers have changed. `is_ours` says what is the agent's memory.
///
/// # Errors
/// The memory cannot be written.
pub(super) fn give_back(
    pid: pid_t,
    regs: &mut user_regs_struct,
    is_ours: impl Fn(usize) -> bool,
) -> io::Result<bool> {
    let Some((leads, by)) = register(pid, regs) else { return Ok(false) };
    let at = *leads as usize;
    // Behind the mask is the address of its own.
    let own = |mask: usize| memory::read_word(pid, mask + size_of::<u64>());
    if is_ours(at) {
        let mask = if by == By::Structure { at - STRUCTURE } else { at };
        return Ok(own(mask).map(|own| *leads = own as u64).is_some());
    }
    // The structure is the program's.
    let mask =
        (by == By::Structure).then(|| memory::read_word(pid, at)).flatten().filter(|&mask| is_ours(mask));
    if let Some(own) = mask.and_then(own) {
        memory::write(pid, at, &own.to_ne_bytes())?;
    }
    Ok(false)
}
