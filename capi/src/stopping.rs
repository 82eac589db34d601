//! Stopping all probes, and what remains then (CTL_7).

use crate::host;
use core::ffi::{c_int, c_ulong};
use probe_core::CodeAddr;

/// What cannot be freed yet of stopped probes. All 0: nothing leads into the library any more.
#[repr(C)]
pub struct probe_remains {
    /// Followed calls that have not returned. Each still returns by way of its stub.
    pub calls: c_ulong,
    /// Where one of them returns to.
    pub call: c_ulong,
    /// Return stubs of calls that were given up and may return yet.
    pub stubs: c_ulong,
    /// Probes that have not been unregistered.
    pub probes: c_ulong,
    /// Slots that an interrupted context may be in.
    pub slots: c_ulong,
    /// Detours that an interrupted context may be in.
    pub detours: c_ulong,
}

/// Stops all probes: no handler runs any more, all text is original, and registering is `-ESHUTDOWN`. Calls
/// that wait and that the kernel shows get their return addresses back and return by themselves, without a
/// handler. Then says what remains; call it again as long as somebody else's doing is missing: calls return,
/// probes are unregistered. Answers 0; `-EBUSY` in a handler; `-EFAULT` if text could not be written
/// somewhere, where a breakpoint stands without handlers until this is called again.
///
/// # Safety
/// `out` is valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_stop(out: *mut probe_remains) -> c_int {
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno,
    };
    match probes.stop().and_then(|stopped| stopped.drain()) {
        Ok(found) => {
            // SAFETY: the caller's promise.
            if let Some(out) = unsafe { out.as_mut() } {
                *out = probe_remains {
                    calls: found.calls as _,
                    call: found.call.map_or(0, CodeAddr::as_usize) as _,
                    stubs: found.stubs as _,
                    probes: found.probes as _,
                    slots: found.slots as _,
                    detours: found.detours as _,
                };
            }
            0
        }
        Err(error) => -error.errno().as_i32(),
    }
}

/// Ends what `probe_stop` has begun: probes can be registered again. Answers 0; `-EBUSY` in a handler.
#[unsafe(no_mangle)]
pub extern "C" fn probe_start_again() -> c_int {
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno,
    };
    probes.start_again().map_or_else(|error| -error.errno().as_i32(), |()| 0)
}
