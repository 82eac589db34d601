//! What CPUs have been asked for, where one interrupt stands for every [`Ipi`].

use super::{Ipi, Machine, Native};
use crate::{cpu, trap};
use core::sync::atomic::{AtomicU32, Ordering};

/// Bits by [`Ipi`].
static ASKED: [AtomicU32; cpu::MAX] = [const { AtomicU32::new(0) }; cpu::MAX];

/// Notes `ipi` for CPU `number`, which is then to be interrupted.
pub fn ask(number: usize, ipi: Ipi) {
    ASKED[number].fetch_or(1 << ipi as u32, Ordering::SeqCst);
}

/// Whether this CPU has been asked for something.
#[cfg(target_arch = "riscv64")]
pub fn is_asked() -> bool {
    ASKED[Native::this_cpu().number].load(Ordering::SeqCst) != 0
}

/// Does what this CPU has been asked for; its interrupt has been acknowledged.
pub fn answer() {
    let asked = ASKED[Native::this_cpu().number].swap(0, Ordering::SeqCst);
    if asked & 1 << Ipi::Sync as u32 != 0 {
        trap::synchronise();
    }
    // Last: another task may go on.
    if asked & 1 << Ipi::Reschedule as u32 != 0 {
        trap::reschedule();
    }
}
