//! What the simulation must know of a backend's saved registers.

/// The saved registers of a context. Where they have 32 bits, reads are extended by zeros, and writes keep
/// the low half.
pub trait Registers {
    /// The MSR bits that may differ in the slot, and that `mfmsr` must not show as they were there: a host
    /// may clear `MSR[EE]` around a slot, and set those that step.
    const OF_THE_SLOT: u64;

    /// General-purpose register `index`, which is below 32.
    fn gpr(&self, index: usize) -> u64;
    /// Sets general-purpose register `index`, which is below 32.
    fn set_gpr(&mut self, index: usize, value: u64);
    /// The next instruction's address.
    fn nip(&self) -> u64;
    /// Sets the next instruction's address.
    fn set_nip(&mut self, value: u64);
    /// The link register.
    fn link(&self) -> u64;
    /// Sets the link register.
    fn set_link(&mut self, value: u64);
    /// The count register.
    fn ctr(&self) -> u64;
    /// Sets the count register.
    fn set_ctr(&mut self, value: u64);
    /// The fixed-point exception register.
    fn xer(&self) -> u64;
    /// The condition register.
    fn ccr(&self) -> u64;
    /// The machine state register.
    fn msr(&self) -> u64;
    /// `address` as the context computes it: its low 32 bits in 32-bit mode.
    ///
    /// Power ISA 3.1C, Book I, "Effective Address Calculation".
    fn effective(&self, address: u64) -> u64;
}
