//! The one value of a program: its probes, made of both halves.

use crate::arch::NativeArch;
use crate::hit::{Copied, Entered, Jumped};
use crate::host::Host;
use crate::probes::{Entries, Probes};
use crate::ret::Returned;

impl<H: Host> Probes<H> {
    /// No probes yet; to be kept in a static.
    pub const fn new(host: H) -> Self {
        let entries = Entries {
            jumped: H::Arch::handler::<Jumped<H>>,
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
