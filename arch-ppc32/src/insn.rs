//! Named encodings and opcode tables: shared, see [`probe_ppc_decode::insn`]. Here is why what they refuse is
//! refused.

pub(crate) use probe_ppc_decode::insn::*;

use probe_core::error::Refusal;
use probe_ppc_decode::Reason;

/// The backend's code and sentence for a reason.
pub(crate) const fn refusal(reason: Reason) -> Refusal {
    match reason {
        Reason::Trap => Refusal::unsupported(
            "ppc32.trap",
            "a trap instruction reports its own address and cannot run as a copy",
        ),
        Reason::ReturnFromInterrupt => Refusal::unsupported(
            "ppc32.rfi",
            "a return from an interrupt takes its state from registers that a probe's trap overwrites",
        ),
        Reason::Stop => Refusal::unsupported(
            "ppc32.stop",
            "a power-saving or waiting instruction resumes in ways that a copy cannot follow",
        ),
        Reason::Mtmsr => Refusal::unsupported(
            "ppc32.mtmsr",
            "a write to the machine state register takes effect on the copy's surroundings, not on the place's",
        ),
        Reason::Mfmsr => Refusal::unsupported(
            "ppc32.mfmsr",
            "a copy would show the machine state register of its surroundings, not the place's",
        ),
        Reason::TrapRegister => Refusal::unsupported(
            "ppc32.trap-register",
            "this special-purpose register is overwritten by the probe's own trap",
        ),
        Reason::Reservation => Refusal::unsupported(
            "ppc32.reservation",
            "a trap at a load-and-reserve or store-conditional instruction loses the reservation",
        ),
        Reason::ReservationRegion => Refusal::unsupported(
            "ppc32.reservation-region",
            "a trap between a load-and-reserve and its store-conditional instruction loses the reservation for ever",
        ),
        Reason::InvalidForm => Refusal::unsupported(
            "ppc32.invalid-form",
            "the instruction form is invalid and its effect is not defined",
        ),
        Reason::Attn => Refusal::unsupported(
            "ppc32.attn",
            "primary opcode 0 is attn or padding, not an instruction of a program",
        ),
        Reason::Misaligned => {
            Refusal::not_an_instruction("ppc32.misaligned", "instructions start at multiples of four bytes")
        }
        Reason::Truncated => {
            Refusal::not_an_instruction("ppc32.truncated", "the text ends inside the instruction")
        }
        Reason::SlotReach => Refusal::unsupported(
            "ppc32.slot-reach",
            "what the instruction addresses is out of reach of its slot",
        ),
        // What 64-bit processors alone have is nothing here.
        Reason::Unallocated
        | Reason::CopyPaste
        | Reason::Transaction
        | Reason::Crossing
        | Reason::Suffix
        | Reason::TocRestore => Refusal::unsupported(
            "ppc32.unallocated",
            "no 32-bit processor has an instruction with this opcode",
        ),
    }
}
