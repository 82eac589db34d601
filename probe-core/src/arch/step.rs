//! Hardware single-step, an optional power of backends.

use super::Arch;

/// A backend whose processor can trap after one instruction: x86 TF, aarch64 `MDSCR_EL1.SS`, ppc64 `MSR[SE]`.
///
/// A slot ends in a breakpoint, which is enough on every architecture, in every host. A host that is allowed
/// to set the processor's step flag may choose it instead: [`SingleStep::begin`] in
/// [`Host::enter_slot`](crate::host::Host::enter_slot), [`SingleStep::end`] in
/// [`Host::leave_slot`](crate::host::Host::leave_slot), and [`Traps::step`](crate::traps::Traps::step) in the
/// trap handler. The breakpoint stays behind the instruction. It ends slots that the processor does not trap
/// after (on x86 the instruction behind a load of SS), slots of several instructions whose end the core
/// cannot tell, and system calls, which are never stepped.
///
/// # Safety
/// Between `begin` and `end` the registers differ only in the part that makes the processor trap, and no
/// instruction in a slot can see that part: a backend simulates or refuses the instructions that read or
/// write it, or corrects their result.
pub unsafe trait SingleStep: Arch {
    /// Makes the context trap after its next instruction; returns what [`SingleStep::end`] needs, in 32 bits.
    fn begin(regs: &mut Self::Regs) -> u32;

    /// Gives the registers back what [`SingleStep::begin`] has changed.
    fn end(regs: &mut Self::Regs, kept: u32);
}
