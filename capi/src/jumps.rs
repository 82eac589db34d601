//! Jumps instead of breakpoints.

use crate::host;
use core::ffi::{c_int, c_long};

/// Gives every probe that can have one a jump instead of its breakpoint, and answers how many places have one
/// now, or a negative errno: `-EBUSY` in a handler; that of the first text that could not be written, whose
/// probe keeps its breakpoint. `kprobes_explain` says where none can be, and why.
#[unsafe(no_mangle)]
pub extern "C" fn probe_optimise() -> c_long {
    match host::probes().map(|probes| probes.jumps().lay()) {
        Ok(Ok(places)) => c_long::try_from(places).unwrap_or(c_long::MAX),
        Ok(Err(error)) => -c_long::from(error.errno().as_i32()),
        Err(errno) => errno.into(),
    }
}

/// Gives every probe its breakpoint back. Answers 0 or a negative errno, as `probe_optimise` does.
#[unsafe(no_mangle)]
pub extern "C" fn probe_unoptimise() -> c_int {
    match host::probes().map(|probes| probes.jumps().lift()) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => -error.errno().as_i32(),
        Err(errno) => errno,
    }
}

/// Whether probes get their jumps when they are registered, enabled or switched on (`is_on` not 0), or only
/// by `probe_optimise`, as at first. Probes that are registered stay as they are. Answers 0 or a negative
/// errno.
#[unsafe(no_mangle)]
pub extern "C" fn probe_optimise_new(is_on: c_int) -> c_int {
    host::probes().map_or_else(
        |errno| errno,
        |probes| {
            probes.jumps().set_automatic((is_on != 0).into());
            0
        },
    )
}
