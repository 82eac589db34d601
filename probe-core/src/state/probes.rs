//! All state of one program's probes, composed of the state of the other files.

use crate::arch::{Arch, MemFault, Memory};
use crate::state::books::Books;
use crate::state::common::Common;
use crate::state::counter::Shares;
use crate::state::detours::Detours;
use crate::state::host::Host;
use crate::state::lender::Lender;
use crate::state::lock::Lock;
use crate::state::places::Places;
use crate::state::program::{Entries, Program};
use crate::state::slots::Slots;
use crate::state::stub::StubChunks;
use crate::state::switches::Switches;
use crate::state::watch::Watches;
use core::ptr::NonNull;

/// All probes of one program: the one thing that a host keeps in a static. Each part owns its fields; hits
/// read them, and the registry changes them while it holds the lock of the books.
pub struct Probes<H: Host> {
    pub(crate) host: H,
    /// Where trampolines lead.
    pub(crate) entries: Entries,
    pub(crate) places: Places<H::Arch>,
    pub(crate) slots: Slots,
    pub(crate) stubs: StubChunks<H>,
    pub(crate) detours: Detours<H>,
    pub(crate) watches: Watches<H::Arch>,
    pub(crate) common: Common<<H::Arch as Arch>::StepState>,
    pub(crate) switches: Switches,
    pub(crate) books: Lock<Books<H>>,
}

impl<H: Host> Probes<H> {
    /// What stubs and detours know it by.
    pub(crate) fn program(&'static self) -> Program<H> {
        // SAFETY: it lies there for good.
        unsafe { Program::new(NonNull::from(self).cast()) }
    }

    /// The probes of a program.
    #[inline(always)]
    pub(crate) fn of(program: Program<H>) -> &'static Self {
        // SAFETY: whoever has made it has said that they lie there for good.
        unsafe { program.address().cast().as_ref() }
    }

    /// No probes yet, and what their trampolines lead to.
    pub(crate) const fn with(host: H, entries: Entries) -> Self {
        Self {
            host,
            entries,
            places: Places::new(),
            slots: Slots::new(),
            stubs: StubChunks::new(),
            detours: Detours::new(),
            watches: Watches::new(),
            common: Common::new(),
            switches: Switches::new(),
            books: Lock::new(Books::new()),
        }
    }
}

impl<H: Host> Lender for Probes<H> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        self.host.memory().read(addr, out)
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        self.host.memory().write(addr, bytes)
    }

    fn note_change(&self) {
        self.switches.note_change();
    }

    fn shares(&self) -> &Shares {
        self.common.shares()
    }
}
