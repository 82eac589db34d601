//! Data breakpoints: shared, see [`probe_x86_decode::watch`].

use probe_core::WatchRange;
use probe_core::error::Refusal;
use probe_x86_decode::ProtectedMode;
pub use probe_x86_decode::watch::{BAD_RANGE, COUNT, control};

/// Whether the processor can watch `range`.
///
/// # Errors
/// [`BAD_RANGE`].
pub fn check(range: &WatchRange) -> Result<(), Refusal> {
    probe_x86_decode::watch::check::<ProtectedMode>(range)
}
