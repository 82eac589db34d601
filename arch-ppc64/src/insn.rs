//! Named encodings and opcode tables: shared, see [`probe_ppc_decode::insn`]. Here is why what they refuse is
//! refused.

pub(crate) use probe_ppc_decode::insn::*;

use probe_core::error::Refusal;
use probe_ppc_decode::Reason;

/// Trap class: the trap of a copy would not be the trap of the place.
pub(crate) const REFUSE_TRAP: Refusal =
    Refusal::unsupported("ppc64.trap", "a trap instruction reports its own address and cannot run as a copy");
/// A return from an interrupt or event.
pub(crate) const REFUSE_RFID: Refusal = Refusal::unsupported(
    "ppc64.rfid",
    "a return from an interrupt takes its state from registers that a probe's trap overwrites",
);
/// Power-saving and halting instructions.
pub(crate) const REFUSE_STOP: Refusal = Refusal::unsupported(
    "ppc64.stop",
    "a power-saving or waiting instruction resumes in ways that a copy cannot follow",
);
/// Writes to the MSR.
pub(crate) const REFUSE_MTMSR: Refusal = Refusal::unsupported(
    "ppc64.mtmsr",
    "a write to the machine state register takes effect on the copy's surroundings, not on the place's",
);
/// Special-purpose registers that the probe's own trap overwrites.
pub(crate) const REFUSE_SPR: Refusal = Refusal::unsupported(
    "ppc64.trap-register",
    "this special-purpose register is overwritten by the probe's own trap",
);
/// Load-and-reserve and store-conditional.
pub(crate) const REFUSE_RESERVATION: Refusal = Refusal::unsupported(
    "ppc64.reservation",
    "a trap at a load-and-reserve or store-conditional instruction loses the reservation",
);
/// Anything between the two.
pub(crate) const REFUSE_RESERVATION_REGION: Refusal = Refusal::unsupported(
    "ppc64.reservation-region",
    "a trap between a load-and-reserve and its store-conditional instruction loses the reservation for ever",
);
/// The copy-paste facility.
pub(crate) const REFUSE_COPY_PASTE: Refusal =
    Refusal::unsupported("ppc64.copy-paste", "a trap between copy and paste loses the copy buffer");
/// Transactional memory.
pub(crate) const REFUSE_TM: Refusal =
    Refusal::unsupported("ppc64.transaction", "a transaction cannot be begun, ended or examined by a copy");
/// Opcodes that the architecture does not define.
pub(crate) const REFUSE_UNALLOCATED: Refusal =
    Refusal::unsupported("ppc64.unallocated", "the Power ISA 3.1C defines no instruction with this opcode");
/// Defined opcodes in a form that the architecture calls invalid.
pub(crate) const REFUSE_INVALID_FORM: Refusal = Refusal::unsupported(
    "ppc64.invalid-form",
    "the instruction form is invalid and its effect is not defined",
);
/// Zero words and `attn`.
pub(crate) const REFUSE_ATTN: Refusal = Refusal::unsupported(
    "ppc64.attn",
    "primary opcode 0 is attn or padding, not an instruction of a program",
);
/// A prefixed instruction across a 64-byte boundary.
pub(crate) const REFUSE_CROSSING: Refusal = Refusal::unsupported(
    "ppc64.prefixed-crossing",
    "a prefixed instruction that crosses a 64-byte boundary raises an alignment interrupt in place",
);
/// The second word of a prefixed instruction.
pub(crate) const REFUSE_SUFFIX: Refusal =
    Refusal::not_an_instruction("ppc64.suffix", "the address is the second word of a prefixed instruction");
/// A misaligned address.
pub(crate) const REFUSE_MISALIGNED: Refusal =
    Refusal::not_an_instruction("ppc64.misaligned", "instructions start at multiples of four bytes");
/// Text that ends early.
pub(crate) const REFUSE_TRUNCATED: Refusal =
    Refusal::not_an_instruction("ppc64.truncated", "the text ends inside the instruction");
/// A word that unwinders read.
pub(crate) const REFUSE_TOC_RESTORE: Refusal = Refusal::unsupported(
    "ppc64.toc-restore",
    "unwinders read this word behind a call to find the caller's TOC pointer; probe the next instruction",
);
/// A slot out of reach.
pub(crate) const REFUSE_SLOT_REACH: Refusal =
    Refusal::unsupported("ppc64.slot-reach", "what the instruction addresses is out of reach of its slot");

/// The backend's code and sentence for a reason.
pub(crate) const fn refusal(reason: Reason) -> Refusal {
    match reason {
        Reason::Trap => REFUSE_TRAP,
        Reason::ReturnFromInterrupt => REFUSE_RFID,
        Reason::Stop => REFUSE_STOP,
        // No read of it is refused here.
        Reason::Mtmsr | Reason::Mfmsr => REFUSE_MTMSR,
        Reason::TrapRegister => REFUSE_SPR,
        Reason::Reservation => REFUSE_RESERVATION,
        Reason::ReservationRegion => REFUSE_RESERVATION_REGION,
        Reason::CopyPaste => REFUSE_COPY_PASTE,
        Reason::Transaction => REFUSE_TM,
        Reason::Unallocated => REFUSE_UNALLOCATED,
        Reason::InvalidForm => REFUSE_INVALID_FORM,
        Reason::Attn => REFUSE_ATTN,
        Reason::Crossing => REFUSE_CROSSING,
        Reason::Suffix => REFUSE_SUFFIX,
        Reason::Misaligned => REFUSE_MISALIGNED,
        Reason::Truncated => REFUSE_TRUNCATED,
        Reason::TocRestore => REFUSE_TOC_RESTORE,
        Reason::SlotReach => REFUSE_SLOT_REACH,
    }
}
