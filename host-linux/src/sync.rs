//! Core synchronisation: every thread of the process executes a full barrier and a context-synchronising
//! event.
//!
//! `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)` (Linux 4.16) is exactly that. Where a sandbox or an old kernel
//! refuses it: `membarrier(GLOBAL)`, which waits until every CPU has gone through the scheduler, that is
//! through the kernel and back (slow: tens of milliseconds). Where that is missing, too: taking a permission
//! away from a page that was just used, which makes x86 kernels interrupt every CPU that runs this process;
//! on the other architectures this last resort is only a barrier.

use crate::sys;
use core::sync::atomic::{AtomicU8, Ordering, fence};

const GLOBAL: i32 = 1;
const PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 5;
const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 6;

/// What works here.
static WAY: AtomicU8 = AtomicU8::new(EXPEDITED);
const EXPEDITED: u8 = 0;
const SLOW: u8 = 1;
const SHOOT_DOWN: u8 = 2;

/// Registers the process, and finds out what works.
pub(crate) fn start() {
    let way = if sys::membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE).is_ok()
        && sys::membarrier(PRIVATE_EXPEDITED_SYNC_CORE).is_ok()
    {
        EXPEDITED
    } else if sys::membarrier(GLOBAL).is_ok() {
        SLOW
    } else {
        SHOOT_DOWN
    };
    WAY.store(way, Ordering::Relaxed);
}

/// Returns after every thread of the process has been synchronised.
pub(crate) fn cores() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "riscv64")]
    flush_instruction_caches();
    let done = match WAY.load(Ordering::Relaxed) {
        EXPEDITED => {
            sys::membarrier(PRIVATE_EXPEDITED_SYNC_CORE).is_ok()
                // A child of a fork may have lost the registration.
                || sys::membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE).is_ok()
                    && sys::membarrier(PRIVATE_EXPEDITED_SYNC_CORE).is_ok()
                // A sandbox may have closed that door.
                || sys::membarrier(GLOBAL).is_ok()
        }
        SLOW => sys::membarrier(GLOBAL).is_ok(),
        _ => false,
    };
    if !done {
        shoot_down();
    }
    fence(Ordering::SeqCst);
}

/// FENCE.I on every hart that runs this process, which `membarrier` does from Linux 6.9 on only. Where there
/// is no such call (an emulator), nothing is stale either.
#[cfg(target_arch = "riscv64")]
fn flush_instruction_caches() {
    const SYS_RISCV_FLUSH_ICACHE: libc::c_long = 259;
    // All of the address space, all threads.
    // SAFETY: it changes nothing but what is fetched.
    unsafe { crate::arch::syscall(SYS_RISCV_FLUSH_ICACHE, &[0; 6]) };
}

/// Takes the write permission from a page that was just written.
fn shoot_down() {
    let len = sys::page_len();
    let Ok(page) = sys::map(0, len, libc::PROT_READ | libc::PROT_WRITE) else { return };
    // SAFETY: just mapped, writable, nobody else's.
    unsafe { core::ptr::write_volatile(page as *mut u8, 1) };
    // SAFETY: nobody else's.
    let _ = unsafe { sys::protect(page, len, libc::PROT_READ) };
    // SAFETY: as above.
    unsafe { sys::unmap(page, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_returns() {
        start();
        cores();
        shoot_down();
    }
}
