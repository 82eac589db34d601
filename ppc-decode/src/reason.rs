//! Why an instruction is not probed.

/// Why an instruction is not probed; each backend has its code and sentence for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Trap class: the trap of a copy would not be the trap of the place.
    Trap,
    /// A return from an interrupt or event.
    ReturnFromInterrupt,
    /// Power-saving and halting instructions.
    Stop,
    /// Writes to the MSR.
    Mtmsr,
    /// Reads of the MSR, where a step keeps nothing.
    Mfmsr,
    /// Special-purpose registers that the probe's own trap overwrites.
    TrapRegister,
    /// Load-and-reserve and store-conditional.
    Reservation,
    /// Anything between the two.
    ReservationRegion,
    /// The copy-paste facility.
    CopyPaste,
    /// Transactional memory.
    Transaction,
    /// Opcodes that the architecture does not define.
    Unallocated,
    /// Defined opcodes in a form that the architecture calls invalid.
    InvalidForm,
    /// Zero words and `attn`.
    Attn,
    /// A prefixed instruction across a 64-byte boundary.
    Crossing,
    /// The second word of a prefixed instruction.
    Suffix,
    /// A misaligned address.
    Misaligned,
    /// Text that ends early.
    Truncated,
    /// A word that unwinders read.
    TocRestore,
    /// A slot out of reach.
    SlotReach,
}
