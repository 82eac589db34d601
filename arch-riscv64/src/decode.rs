//! Instructions to plans and refusals.
//!
//! Instructions that read or write the program counter are simulated: AUIPC, JAL, JALR, the branches and
//! their compressed forms, as the manual's I 2.5 and I 27.4 list them. Everything else may run out of line.
//! It is taken from an allow-list, so that an instruction that a future extension puts elsewhere is refused,
//! not mistaken. Compressed and full instructions lie in one stream, every one at a multiple of two bytes.
//! Pure; called at registration.

mod compressed;
mod full;
mod reservation;

use crate::insn;
use probe_core::arch::{Decoded, Method, Site};
use probe_core::error::Refusal;

/// A decoded instruction: what it does to the registers, or that it runs in a slot.
///
/// Offsets are in bytes from the place. Register numbers are 0 to 31; X0 reads as zero and is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// `nop` and `c.nop`: only the program counter moves on.
    Nop {
        /// The length of the instruction.
        len_bytes: u8,
    },
    /// `auipc`.
    Address {
        /// The destination.
        rd: u8,
        /// The distance.
        offset: i32,
    },
    /// `jal` and `c.j`.
    Jump {
        /// Where the address of the next instruction goes; 0 for `c.j`. `jal` is four bytes long.
        rd: u8,
        /// The distance to the target.
        offset: i32,
    },
    /// `jalr`, `c.jr` and `c.jalr`.
    JumpRegister {
        /// Where the address of the next instruction goes.
        rd: u8,
        /// The register with the target.
        rs1: u8,
        /// What is added to that.
        offset: i16,
        /// The length of the instruction.
        len_bytes: u8,
    },
    /// The branches, `c.beqz` and `c.bnez` among them.
    Branch {
        /// When it is taken.
        condition: Condition,
        /// The first of the registers that are compared.
        rs1: u8,
        /// The second one.
        rs2: u8,
        /// The distance to the target.
        offset: i16,
        /// The length of the instruction.
        len_bytes: u8,
    },
    /// Anything whose effect does not depend on where it lies.
    OutOfLine,
    /// `ecall`: out of line too; it may block, wake twice or never come back.
    SystemCall,
}

const _: () = assert!(size_of::<Plan>() <= 16);

/// When a branch is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `beq`.
    Equal,
    /// `bne`.
    NotEqual,
    /// `blt`.
    Less,
    /// `bge`.
    GreaterOrEqual,
    /// `bltu`.
    Below,
    /// `bgeu`.
    AboveOrEqual,
}

/// Decides about the instruction at `site`.
pub(crate) fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
    if !site.at.as_usize().is_multiple_of(2) {
        return Err(MISALIGNED);
    }
    let mut bytes = [0; 4];
    let len = site.text.read(site.at, &mut bytes).min(4);
    let word = match insn::word_at(&bytes[..len]) {
        Some(word) => word,
        None if len < 4 => return Err(UNREADABLE),
        None => return Err(UNALLOCATED),
    };
    let (plan, method) = classify(word)?;
    refuse_signal_return(site, word)?;
    if reservation::is_held(site) {
        return Err(RESERVATION_REGION);
    }
    Ok(Decoded { plan, len_bytes: insn::len_bytes(word), method })
}

/// Refuses the pair of instructions by which unwinders know Linux's way out of a signal's handler.
fn refuse_signal_return(site: &Site<'_>, word: u32) -> Result<(), Refusal> {
    let [first, second] = insn::SIGNAL_RETURN;
    let (at, other) = match word {
        _ if word == first => (site.at.wrapping_add(4), second),
        _ if word == second => (site.at.wrapping_offset(-4), first),
        _ => return Ok(()),
    };
    let mut bytes = [0; 4];
    let is_pair = site.text.read(at, &mut bytes) == 4 && u32::from_le_bytes(bytes) == other;
    if is_pair { Err(SIGNAL_RETURN) } else { Ok(()) }
}

/// Decides about one instruction, whatever surrounds it.
pub(crate) fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
    let plan = if insn::len_bytes(word) == 2 { compressed::classify(word) } else { full::classify(word) }?;
    let method = match plan {
        Plan::OutOfLine | Plan::SystemCall => Method::Boost,
        _ => Method::Simulate,
    };
    Ok((plan, method))
}

/// The bytes between a function's symbol and the first place where a breakpoint does no harm: past a landing
/// pad.
pub(crate) fn entry_offset(first: &[u8]) -> usize {
    match insn::word_at(first) {
        Some(word) if insn::LPAD.matches(word) => 4,
        _ => 0,
    }
}

const MISALIGNED: Refusal =
    Refusal::not_an_instruction("riscv64.misaligned", "instructions lie at multiples of two bytes");
const UNREADABLE: Refusal = Refusal::invalid("riscv64.unreadable", "the instruction's text cannot be read");
const UNDEFINED: Refusal = Refusal::invalid(
    "riscv64.undefined",
    "the instruction is defined to be illegal: padding or data, not an instruction to probe",
);
const BREAKPOINT: Refusal =
    Refusal::invalid("riscv64.breakpoint", "a breakpoint that somebody else has put here");
const UNALLOCATED: Refusal = Refusal::unsupported(
    "riscv64.unallocated",
    "the bytes are not an instruction that this backend knows, and unknown ones may depend on their address",
);
const RESERVATION: Refusal = Refusal::unsupported(
    "riscv64.reservation",
    "the probe's trap may take away the reservation of lr and sc, so that their loop would never end",
);
const RESERVATION_REGION: Refusal = Refusal::unsupported(
    "riscv64.reservation_region",
    "the place lies between lr and its sc, whose reservation the probe's trap may take away",
);
const LANDING_PAD: Refusal = Refusal::unsupported(
    "riscv64.landing_pad",
    "indirect jumps may have to land on this lpad: the place behind it can be probed",
);
const SIGNAL_RETURN: Refusal = Refusal::unsupported(
    "riscv64.signal_return",
    "unwinders know the way out of a signal's handler by these two instructions",
);
const SYSTEM_REGISTER: Refusal = Refusal::unsupported(
    "riscv64.system_register",
    "a trap, or what handles it, changes or depends on system registers other than counters and those of floating point",
);
const EXCEPTION_RETURN: Refusal = Refusal::unsupported(
    "riscv64.exception_return",
    "an exception return takes its state from registers that the probe's trap overwrites",
);

#[cfg(test)]
mod tests;
