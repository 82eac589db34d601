//! Probes as their users make and see them: builders, views of a hit, listings, and the one value of a
//! program, made of both halves.

pub mod events;
pub mod files;
pub(crate) mod jprobe;
pub mod jumps;
pub(crate) mod kprobe;
pub(crate) mod kretprobe;
pub(crate) mod macros;
pub mod pools;
mod self_test;
pub mod traps;

use crate::arch::NativeArch;
use crate::hit::by_jump::{Copied, Entered, Jumped, JumpedAny};
use crate::hit::ret::fast::Returned;
use crate::state::host::Host;
use crate::state::probes::Probes;
use crate::state::program::Entries;

impl<H: Host> Probes<H> {
    /// No probes yet; to be kept in a static.
    pub const fn new(host: H) -> Self {
        let entries = Entries {
            jumped: H::Arch::handler::<Jumped<H>>,
            jumped_any: H::Arch::handler::<JumpedAny<H>>,
            entered: H::Arch::handler::<Entered<H, false>>,
            entered_following: H::Arch::handler::<Entered<H, true>>,
            copied: H::Arch::handler::<Copied<H>>,
            returned: H::Arch::handler::<Returned<H>>,
        };
        Self::with(host, entries)
    }

    /// The embedding program.
    pub fn host(&self) -> &H {
        &self.host
    }
}
