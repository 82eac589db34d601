//! A stretch of writes of text as a value.

use crate::held::Hold;
use crate::state::host::Host;

/// The time between [`Host::begin_writes`] and [`Host::end_writes`], which is where this is dropped.
///
/// Nothing in it runs code of the program, but allocations, while breakpoints are being taken away: a write
/// that the host has put off would let the program meet a breakpoint that nobody knows any more.
#[must_use = "the stretch ends where this is dropped"]
pub(crate) struct Writing<'h, H: Host>(&'h H);

impl<'h, H: Host> Writing<'h, H> {
    /// Begins one. Under the registry's lock.
    #[inline(always)]
    pub(crate) fn begin(host: &'h H, _hold: &Hold) -> Self {
        host.begin_writes();
        Self(host)
    }
}

impl<H: Host> Drop for Writing<'_, H> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.end_writes();
    }
}
