//! The pools of return probes: larger before they are empty, outside of the hit path.

use crate::error::GrowError;
use crate::state::host::Host;
use crate::state::probes::Probes;

/// The pools of one program's return probes, from [`Probes::pools`].
pub struct PoolControl<H: Host>(&'static Probes<H>);

impl<H: Host> Clone for PoolControl<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for PoolControl<H> {}

impl<H: Host> Probes<H> {
    /// How many calls return probes can follow.
    #[inline]
    pub const fn pools(&'static self) -> PoolControl<H> {
        PoolControl(self)
    }
}

impl<H: Host> PoolControl<H> {
    /// Whether a return probe has had half of its instances in use since [`PoolControl::grow`] was last called, and may get more.
    /// One load: for whoever looks again and again.
    pub fn are_low(self) -> bool {
        self.0.switches.has_low_pools()
    }

    /// Makes pools larger: those that [are low](PoolControl::are_low) twice as large, unless more than a quarter of their
    /// instances are of calls that never returned; and all so large that `calls` calls can be followed at the same time;
    /// each up to what its probe says ([`Kretprobe::grow_to`](crate::Kretprobe::grow_to)). How many instances have been
    /// added.
    ///
    /// # Errors
    /// Called from a handler, or no memory: pools stay as large as they have become.
    pub fn grow(self, calls: usize) -> Result<usize, GrowError> {
        self.0.grow_pools(calls)
    }
}
