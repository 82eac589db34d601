//! Jumps instead of breakpoints, for all probes of a program. `without_jump` forbids them for one probe.

use crate::error::JumpError;
use crate::state::host::Host;
use crate::state::probes::Probes;
use crate::state::switches::Switch;

/// The jumps of one program's probes, from [`Probes::jumps`].
pub struct JumpControl<H: Host>(&'static Probes<H>);

impl<H: Host> Clone for JumpControl<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for JumpControl<H> {}

impl<H: Host> Probes<H> {
    /// Jumps instead of breakpoints, for all probes.
    #[inline]
    pub const fn jumps(&'static self) -> JumpControl<H> {
        JumpControl(self)
    }
}

impl<H: Host> JumpControl<H> {
    /// Gives every probe that can have one a jump instead of its breakpoint, and returns how many places have
    /// one now.
    ///
    /// # Errors
    /// Called from a handler; or the first text that could not be written: that probe keeps its breakpoint.
    pub fn lay(self) -> Result<usize, JumpError> {
        self.0.lay_jumps()
    }

    /// Gives every probe its breakpoint back.
    ///
    /// # Errors
    /// Called from a handler; or the first text that could not be written: that probe keeps its jump.
    pub fn lift(self) -> Result<(), JumpError> {
        self.0.lift_jumps()
    }

    /// Whether probes get their jumps when they are registered, enabled or switched on, without
    /// [`JumpControl::lay`]. Off at first. Probes that are registered already stay as they are.
    pub fn set_automatic(self, to: Switch) {
        self.0.switches.set_optimising(to);
    }
}
