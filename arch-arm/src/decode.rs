//! Instructions to plans and refusals.
//!
//! Instructions that read or write the program counter are simulated: branches, loads into it and relative
//! to it, arithmetic with it as an operand, IT. Everything else may run out of line. It is taken from an
//! allow-list, so that an instruction that a later architecture puts elsewhere is refused, not mistaken; so
//! are the uses of the program counter that the manual calls unpredictable. Pure; called at registration.

mod a32;
mod block;
mod coprocessor;
mod data;
mod narrow;
mod reservation;
mod wide;

pub(crate) use self::data::{is_at as is_data, len_behind};
use crate::insn::{self, Set};
use probe_core::CodeAddr;
use probe_core::arch::{Decoded, Method, Site};
use probe_core::error::Refusal;

/// A condition, as its four bits are numbered (A8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition(pub(crate) u8);

impl Condition {
    /// Always.
    pub(crate) const ALWAYS: Self = Self(0b1110);
}

/// A decoded instruction: what it does to the registers and to memory, or that it runs in a slot.
///
/// Offsets are in bytes from the program counter as the instruction reads it: 8 ahead in A32, 4 in T32.
/// Register numbers are 0 to 15. `condition` is the instruction's own; in an IT block the state of the block
/// says another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// `nop`, and a preload relative to the program counter: only the program counter moves on.
    Nop {
        /// The length of the instruction.
        len_bytes: u8,
    },
    /// Anything whose effect does not depend on where it lies.
    OutOfLine {
        /// It may be in an IT block, as far as the text tells.
        may_be_in_it: bool,
    },
    /// `svc`: out of line too; it may block, wake twice or never come back.
    SystemCall {
        /// It may be in an IT block, as far as the text tells.
        may_be_in_it: bool,
    },
    /// Out of line with R0 in the place of the program counter: loads and stores of floating point.
    Borrow,
    /// `it`: the state of a block begins.
    If {
        /// The state.
        state: u8,
    },
    /// `b`, `bl`, and `blx` to a distance.
    Branch {
        /// When.
        condition: Condition,
        /// Whether the address of the next instruction goes to LR.
        links: bool,
        /// Whether the target is of the other instruction set.
        exchanges: bool,
        /// The length of the instruction.
        len_bytes: u8,
        /// The distance; from the word that the program counter is in where T32 goes to A32.
        offset: i32,
    },
    /// `bx`, `bxj`, `blx` to a register's value.
    BranchRegister {
        /// When.
        condition: Condition,
        /// Whether the address of the next instruction goes to LR.
        links: bool,
        /// The register.
        rm: u8,
        /// The length of the instruction.
        len_bytes: u8,
    },
    /// `cbz`, `cbnz`.
    CompareBranch {
        /// The register that is compared with zero.
        rn: u8,
        /// Whether it branches where the two differ.
        on_nonzero: bool,
        /// The distance.
        offset: u8,
    },
    /// `tbb`, `tbh`.
    Table {
        /// The table.
        rn: u8,
        /// The index.
        rm: u8,
        /// Whether its entries are halfwords.
        of_halfwords: bool,
    },
    /// `adr` of T32: from the word that the program counter is in.
    Address {
        /// The destination.
        rd: u8,
        /// The length of the instruction.
        len_bytes: u8,
        /// The distance.
        offset: i16,
    },
    /// `mrs` from CPSR.
    Status {
        /// When.
        condition: Condition,
        /// The destination.
        rd: u8,
    },
    /// Data processing with the program counter as an operand or as the destination.
    Data {
        /// When.
        condition: Condition,
        /// The operation, as A32 numbers them (A5.2.1).
        operation: u8,
        /// Whether it sets the flags.
        sets_flags: bool,
        /// The destination.
        rd: u8,
        /// The first operand.
        rn: u8,
        /// The second operand.
        operand: Operand,
        /// The length of the instruction.
        len_bytes: u8,
    },
    /// A load or a store with the program counter as its base or as what is moved.
    Transfer {
        /// When.
        condition: Condition,
        /// What is moved.
        access: Access,
        /// Where to or from; of a pair the first.
        rt: u8,
        /// The second of a pair.
        rt2: u8,
        /// The base.
        rn: u8,
        /// How the address is made.
        addressing: Addressing,
        /// What is added to or taken from the base.
        offset: Offset,
        /// The length of the instruction.
        len_bytes: u8,
    },
    /// `ldm`, `pop`, `stm`, `push` with the program counter among the registers.
    Multiple {
        /// When.
        condition: Condition,
        /// Whether it loads.
        loads: bool,
        /// The base.
        rn: u8,
        /// From the base up, or down to it.
        goes_up: bool,
        /// Whether the base itself is left out, at that end.
        is_before: bool,
        /// Whether the base is changed.
        writes_back: bool,
        /// The length of the instruction.
        len_bytes: u8,
        /// A bit for each register.
        registers: u16,
    },
}

const _: () = assert!(size_of::<Plan>() <= 16);

/// The second operand of data processing (A5.2.4, A8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Eight bits, rotated to the right.
    Immediate {
        /// The bits.
        value: u8,
        /// By how many bits.
        rotation: u8,
    },
    /// A register, shifted.
    Register {
        /// The register.
        rm: u8,
        /// How.
        shift: Shift,
        /// By how many bits.
        amount: u8,
    },
}

/// A shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// To the left.
    Left,
    /// To the right, with zeros.
    Right,
    /// To the right, with the sign.
    Arithmetic,
    /// Around.
    Rotate,
    /// Around by one bit, through the carry flag.
    Extend,
}

/// What a load or a store moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A word is stored.
    Store,
    /// A byte is stored.
    StoreByte,
    /// A halfword is stored.
    StoreHalf,
    /// Two words are stored.
    StorePair,
    /// A word is loaded.
    Load,
    /// A byte is loaded.
    LoadByte,
    /// A halfword is loaded.
    LoadHalf,
    /// A byte with a sign is loaded.
    LoadSignedByte,
    /// A halfword with a sign is loaded.
    LoadSignedHalf,
    /// Two words are loaded.
    LoadPair,
}

/// How the address of a load or a store is made (A4.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// The base and the offset.
    Offset,
    /// The same, and the base is changed to it.
    Before,
    /// The base, which is changed by the offset afterwards.
    After,
}

/// The offset of a load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// A number of bytes.
    Immediate(i16),
    /// A register, shifted.
    Register {
        /// The register.
        rm: u8,
        /// How.
        shift: Shift,
        /// By how many bits; with the highest bit it is taken away instead of added.
        amount: u8,
    },
}

impl Offset {
    /// In an amount: the offset is taken away.
    pub(crate) const SUBTRACTED: u8 = 0x80;
}

/// The shift that an immediate names (A8.4.3, DecodeImmShift).
fn immediate_shift(kind: u32, amount: u32) -> (Shift, u8) {
    match (kind, amount) {
        (0, _) => (Shift::Left, amount as u8),
        (1, 0) => (Shift::Right, 32),
        (1, _) => (Shift::Right, amount as u8),
        (2, 0) => (Shift::Arithmetic, 32),
        (2, _) => (Shift::Arithmetic, amount as u8),
        (_, 0) => (Shift::Extend, 1),
        (_, _) => (Shift::Rotate, amount as u8),
    }
}

/// Decides about the instruction at `site`.
pub(crate) fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
    let set = Set::of(site.at);
    if set == Set::A32 && !site.at.as_usize().is_multiple_of(4) {
        return Err(MISALIGNED);
    }
    if site.at.as_usize() >= VECTORS {
        return Err(KERNEL_HELPER);
    }
    let mut bytes = [0; 4];
    let len = site.text.read(site.at, &mut bytes).min(4);
    let word = insn::word_at(set, &bytes[..len]).ok_or(UNREADABLE)?;
    let (mut plan, mut method) = classify(set, word)?;
    refuse_signal_return(site, set, word)?;
    if set == Set::T32
        && let Plan::OutOfLine { may_be_in_it } | Plan::SystemCall { may_be_in_it } = &mut plan
        && block::may_hold(site)
    {
        *may_be_in_it = true;
        method = Method::Step;
    }
    if reservation::is_held(site) {
        return Err(RESERVATION_REGION);
    }
    if data::is_at(site) {
        return Err(CONSTANT);
    }
    Ok(Decoded { plan, len_bytes: insn::len_bytes(set, word), method })
}

/// The page of vectors, where Linux keeps its helpers for processes.
const VECTORS: usize = 0xffff_0000;

/// Refuses the pair of instructions by which unwinders know Linux's way out of a signal's handler: `mov r7,
/// #119` or `#173`, and `svc #0`, or the same in the words of the older convention.
fn refuse_signal_return(site: &Site<'_>, set: Set, word: u32) -> Result<(), Refusal> {
    let is_number = |word: u32| match set {
        Set::A32 => matches!(word, 0xe3a0_7077 | 0xe3a0_70ad),
        Set::T32 => matches!(word, 0x2777 | 0x27ad),
    };
    let is_call = |word: u32| match set {
        Set::A32 => matches!(word, 0xef00_0000 | 0xef90_0077 | 0xef90_00ad),
        Set::T32 => word == 0xdf00,
    };
    let len = isize::from(insn::len_bytes(set, word));
    let is_at = |offset: isize, is: &dyn Fn(u32) -> bool| {
        let mut bytes = [0; 4];
        let read = site.text.read(site.at.wrapping_offset(offset), &mut bytes).min(4);
        insn::word_at(set, &bytes[..read]).is_some_and(is)
    };
    if is_number(word) && is_at(len, &is_call) || is_call(word) && is_at(-len, &is_number) {
        return Err(SIGNAL_RETURN);
    }
    Ok(())
}

/// Whether any breakpoint of either set is at the start of `bytes`.
pub(crate) fn is_breakpoint(set: Set, bytes: &[u8]) -> bool {
    insn::word_at(set, bytes).is_some_and(|word| matches!(classify(set, word), Err(why) if why == BREAKPOINT))
}

/// Decides about one instruction, whatever surrounds it.
pub(crate) fn classify(set: Set, word: u32) -> Result<(Plan, Method), Refusal> {
    let plan = match set {
        Set::A32 => a32::classify(word),
        Set::T32 if insn::len_bytes(set, word) == 2 => narrow::classify(word),
        Set::T32 => wide::classify(word),
    }?;
    let method = match plan {
        Plan::OutOfLine { .. } | Plan::SystemCall { .. } => Method::Boost,
        Plan::Borrow => Method::Step,
        _ => Method::Simulate,
    };
    Ok((plan, method))
}

/// Where the instruction `word` at `at` may branch directly, and whether control may go on behind it.
pub(crate) fn direct_branch(set: Set, word: u32, at: CodeAddr) -> Option<(CodeAddr, bool)> {
    let ahead = at.wrapping_add(set.ahead() as usize);
    match classify(set, word).ok()?.0 {
        Plan::Branch { condition, links, exchanges: false, offset, .. } => {
            Some((ahead.wrapping_offset(offset as isize), links || condition != Condition::ALWAYS))
        }
        Plan::CompareBranch { offset, .. } => Some((ahead.wrapping_add(usize::from(offset)), true)),
        _ => None,
    }
}

/// Whether the T32 instruction at `site` may be in an IT block.
pub(crate) fn may_be_in_block(site: &Site<'_>) -> bool {
    block::may_hold(site)
}

/// Out of line, wherever it is.
const OUT_OF_LINE: Plan = Plan::OutOfLine { may_be_in_it: false };
const SYSTEM_CALL: Plan = Plan::SystemCall { may_be_in_it: false };

const MISALIGNED: Refusal = Refusal::not_an_instruction(
    "arm.misaligned",
    "A32 instructions lie at multiples of four bytes; the address of a T32 instruction has bit 0 set",
);
const UNREADABLE: Refusal = Refusal::invalid("arm.unreadable", "the instruction's text cannot be read");
const UNDEFINED: Refusal = Refusal::invalid(
    "arm.undefined",
    "the instruction is defined to be undefined: padding or data, not an instruction to probe",
);
const BREAKPOINT: Refusal =
    Refusal::invalid("arm.breakpoint", "a breakpoint that somebody else has put here");
const UNALLOCATED: Refusal = Refusal::unsupported(
    "arm.unallocated",
    "the bytes are not an instruction that this backend knows, and unknown ones may depend on their address",
);
const UNPREDICTABLE: Refusal = Refusal::unsupported(
    "arm.unpredictable",
    "the architecture does not say what this use of the program counter or of write-back does",
);
const RESERVATION: Refusal = Refusal::unsupported(
    "arm.reservation",
    "the probe's trap takes away the reservation of ldrex and strex, so that their loop would never end",
);
const RESERVATION_REGION: Refusal = Refusal::unsupported(
    "arm.reservation_region",
    "the place lies between ldrex and its strex, whose reservation the probe's trap takes away",
);
const CONSTANT: Refusal = Refusal::not_an_instruction(
    "arm.constant",
    "the place is a constant or a table between the instructions of its function, or behind one within an instruction",
);
const KERNEL_HELPER: Refusal = Refusal::unsupported(
    "arm.kernel_helper",
    "the kernel's helpers are in a page that all processes share, and some are restarted where they are interrupted",
);
const SIGNAL_RETURN: Refusal = Refusal::unsupported(
    "arm.signal_return",
    "unwinders know the way out of a signal's handler by these two instructions",
);
const SYSTEM_REGISTER: Refusal = Refusal::unsupported(
    "arm.system_register",
    "a trap, or what handles it, changes or depends on system registers other than flags, floating point, thread pointers and counters",
);
const PROCESSOR_STATE: Refusal = Refusal::unsupported(
    "arm.processor_state",
    "the trap's own handling depends on the mode, the byte order and the interrupts that the instruction changes",
);
const EXCEPTION_RETURN: Refusal = Refusal::unsupported(
    "arm.exception_return",
    "an exception return takes its state from registers that the probe's trap overwrites",
);
const OTHER_CALL: Refusal = Refusal::unsupported(
    "arm.other_call",
    "hypervisor and monitor see the address of the call, which a copy changes",
);

#[cfg(test)]
mod tests;
