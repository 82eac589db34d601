//! Traps: a host's trap code hands them to the core before its own handling, and the core answers.

use crate::addr::CodeAddr;
use crate::arch::SingleStep;
pub use crate::hit::step::Copied;
pub use crate::hit::{FaultVerdict, Trap};
use crate::state::host::{Host, RegsOf};
use crate::state::probes::Probes;

/// The trap entries of one program's probes, from [`Probes::traps`].
///
/// Each is called with the interrupted registers, while interrupts are off (a kernel) or asynchronous signals
/// kept away (a process).
pub struct Traps<'a, H: Host>(&'a Probes<H>);

impl<H: Host> Clone for Traps<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for Traps<'_, H> {}

impl<H: Host> Probes<H> {
    /// The face to which the host's trap code hands its traps.
    #[inline(always)]
    pub const fn traps(&self) -> Traps<'_, H> {
        Traps(self)
    }
}

impl<H: Host> Traps<'_, H> {
    /// Handles a breakpoint trap.
    ///
    /// Always inlined: a host calls it at one place, and the call would add a twentieth to the cost of a hit.
    #[inline(always)]
    pub fn breakpoint(self, regs: &mut RegsOf<H>) -> Trap {
        self.0.breakpoint(regs)
    }

    /// Handles a fault, with the architecture's number of the trap; the host also calls it after
    /// [`Trap::Fault`].
    ///
    /// A fault of an original instruction, or of a handler, goes to the probes' fault handlers (HIT_9).
    #[inline]
    pub fn fault(self, regs: &mut RegsOf<H>, trap_number: u32) -> FaultVerdict {
        self.0.fault(regs, trap_number)
    }

    /// Handles a single-step trap, for hosts that step slots in hardware ([`SingleStep`]). [`Trap::NotOurs`]:
    /// somebody else is being stepped.
    #[inline]
    pub fn step(self, regs: &mut RegsOf<H>) -> Trap
    where
        H::Arch: SingleStep,
    {
        self.0.step(regs)
    }

    /// The copy of an instruction that a context at `at` is in; `None` if it is in the program's text, or in
    /// code of the host.
    ///
    /// For hosts whose program may step itself (x86: TF). The processor does not trap behind a breakpoint
    /// that is [`Handled`](Trap::Handled): if the program was stepped before it, and `regs` resume at another
    /// place and in no copy, the host raises the step's trap. A step's trap inside a slot is nobody's: the
    /// one behind it is the instruction's.
    pub fn copied_at(self, at: CodeAddr) -> Option<Copied> {
        self.0.copied_at(at)
    }

    /// Handles a data-reference trap of the debug register `index`
    /// ([`Watchpoints::arm`](crate::host::Watchpoints::arm)), after the instruction that has made the
    /// reference.
    ///
    /// A trap of a watchpoint that was removed a moment ago is ignored.
    #[inline]
    pub fn watchpoint(self, regs: &mut RegsOf<H>, index: usize) {
        self.0.watchpoint(regs, index);
    }
}
