//! Watchpoints: the debug registers of all CPUs hold the same.
//!
//! Whoever changes them asks all CPUs to synchronise, and each loads what is new then.

use crate::arch::{Machine, Native};
use crate::cpu;
use crate::lock::SpinLock;
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_core::WatchRange;
use probe_core::error::Refusal;
use probe_core::host::Watchpoints;
use probe_core::limits::MAX_WATCHPOINTS;

/// What each debug register watches.
pub type Ranges = [Option<WatchRange>; MAX_WATCHPOINTS];

static RANGES: SpinLock<Ranges> = SpinLock::new([None; MAX_WATCHPOINTS]);
/// How often they have changed.
static VERSION: AtomicUsize = AtomicUsize::new(0);

/// The power that the probes get, where the machine has it.
pub struct DebugRegisters;

// SAFETY: `disarm` returns when every CPU has loaded registers without the range.
unsafe impl Watchpoints for DebugRegisters {
    fn count(&self) -> usize {
        Native::watchpoints().unwrap_or(0)
    }

    fn check(&self, range: &WatchRange) -> Result<(), Refusal> {
        Native::check_watch(range)
    }

    fn arm(&self, index: usize, range: &WatchRange) -> Result<(), Refusal> {
        change(index, Some(*range));
        Ok(())
    }

    fn disarm(&self, index: usize) {
        change(index, None);
    }
}

fn change(index: usize, range: Option<WatchRange>) {
    RANGES.lock()[index] = range;
    VERSION.fetch_add(1, Ordering::Release);
    cpu::RENDEZVOUS.synchronise();
}

/// Loads this CPU's registers if they have changed: a part of every synchronisation, interrupts disabled.
pub fn synchronise() {
    let version = VERSION.load(Ordering::Acquire);
    if Native::this_cpu().watch_version.replace(version) != version {
        Native::load_watchpoints(&RANGES.lock());
    }
}

/// Loads this CPU's registers again, after it has done without them for one instruction.
#[cfg(target_arch = "aarch64")]
pub fn reload() {
    Native::load_watchpoints(&RANGES.lock());
}

/// What the registers hold, for whoever has to tell which of them a trap is about.
#[cfg(target_arch = "aarch64")]
pub fn ranges() -> Ranges {
    *RANGES.lock()
}
