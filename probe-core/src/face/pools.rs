//! The pools of return probes, made larger before they are empty, outside of the hit path.

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
    /// Room for followed calls.
    #[inline]
    pub const fn pools(&'static self) -> PoolControl<H> {
        PoolControl(self)
    }
}

impl<H: Host> PoolControl<H> {
    /// Whether a return probe that may grow has had half of its instances in use since [`PoolControl::grow`]
    /// was last called. It costs one load, so a host can ask often.
    pub fn are_low(self) -> bool {
        self.0.switches.has_low_pools()
    }

    /// Makes pools larger: those that [are low](PoolControl::are_low) twice as large, unless more than a
    /// quarter of their instances belong to calls that never returned; and all so large that `calls` calls
    /// can be followed at the same time; each up to its probe's limit
    /// ([`Kretprobe::grow_to`](crate::Kretprobe::grow_to)). Returns the number of instances added.
    ///
    /// # Errors
    /// Called from a handler, or no memory: pools keep the size that they have reached.
    pub fn grow(self, calls: usize) -> Result<usize, GrowError> {
        self.0.grow_pools(calls)
    }
}
