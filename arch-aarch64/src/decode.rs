//! Bytes to a plan, or a refusal: what is simulated, what runs in a slot, what is not probed and why.
//!
//! [`Plan`] is the result. Classification is by mask tables ([`crate::insn`]); the words of the branch,
//! exception and system space are taken from an allow-list, so that an instruction that a future architecture
//! puts there is refused, not mistaken. Everything else may run out of line: A64 has no PC-relative data
//! processing beside ADR, ADRP, LDR (literal) and what FEAT_PAuth_LR adds. Pure; called at registration.

mod exclusive;
mod system;

use crate::insn;
use probe_core::CodeAddr;
use probe_core::arch::{Decoded, Method, Site};
use probe_core::error::Refusal;

/// A decoded instruction: what it does to the registers, or how its slot is built.
///
/// Offsets are in bytes from the place. Register numbers are 0 to 31; what 31 means is said where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// NOP, BTI and PRFM (literal): only the program counter moves on.
    Nop,
    /// `b`.
    Branch {
        /// The distance to the target.
        offset: i32,
    },
    /// `bl`.
    BranchLink {
        /// The distance to the target.
        offset: i32,
    },
    /// `b.cond` and `bc.cond`.
    BranchCondition {
        /// The condition, as encoded.
        cond: u8,
        /// The distance to the target.
        offset: i32,
    },
    /// `cbz` and `cbnz`.
    CompareBranch {
        /// The register that is compared with zero; 31 is XZR.
        rt: u8,
        /// How much of it.
        width: Width,
        /// Whether it branches when the value is zero.
        when: When,
        /// The distance to the target.
        offset: i32,
    },
    /// `tbz` and `tbnz`.
    TestBranch {
        /// The register; 31 is XZR.
        rt: u8,
        /// The number of the bit that is tested.
        bit: u8,
        /// Whether it branches when the bit is zero.
        when: When,
        /// The distance to the target.
        offset: i32,
    },
    /// `adr`.
    Address {
        /// The destination; 31 is XZR.
        rd: u8,
        /// The distance.
        offset: i32,
    },
    /// `adrp`.
    PageAddress {
        /// The destination; 31 is XZR.
        rd: u8,
        /// The distance in pages of 4096 bytes from the page of the place.
        pages: i32,
    },
    /// `ldr Wt|Xt, label` and `ldrsw Xt, label`.
    LoadLiteral {
        /// The destination; 31 is XZR.
        rt: u8,
        /// What is loaded.
        literal: Literal,
        /// The distance to the literal.
        offset: i32,
    },
    /// `ldr St|Dt|Qt, label`: runs in a slot as a load through X16.
    LoadLiteralSimd {
        /// `ldr St|Dt|Qt, [x16]`.
        load: u32,
        /// The distance to the literal.
        offset: i32,
    },
    /// `br`, `blr` and `ret`.
    BranchRegister {
        /// The register with the target; 31 is XZR.
        rn: u8,
        /// Which of the three.
        kind: BranchKind,
    },
    /// `braa`, `blraa`, `retaa` and their forms: the authentication runs in a slot, the branch is simulated.
    AuthenticatedBranch {
        /// The register with the signed target.
        rn: u8,
        /// Which of the three.
        kind: BranchKind,
        /// `autia Xn, Xm|SP`, `autiza Xn` or the same with key B.
        authenticate: u32,
    },
    /// Anything whose effect does not depend on where it lies.
    OutOfLine,
    /// `svc`: out of line too; it may block, wake twice or never come back.
    SystemCall,
}

const _: () = assert!(size_of::<Plan>() <= 16);

/// How much of a general register an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The low 32 bits.
    W,
    /// All 64.
    X,
}

/// Which outcome of a test makes a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `cbz`, `tbz`.
    Zero,
    /// `cbnz`, `tbnz`.
    NonZero,
}

/// What LDR (literal) loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Literal {
    /// 32 bits, zero-extended.
    Word,
    /// 32 bits, sign-extended to 64.
    SignedWord,
    /// 64 bits.
    Doubleword,
}

/// What kind of branch an indirect branch is: whether it links, and which BTYPE it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchKind {
    /// `br`, `braa`.
    Jump,
    /// `blr`, `blraa`.
    Call,
    /// `ret`, `retaa`.
    Return,
}

/// Decides about the instruction at `site`.
pub(crate) fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
    if !site.at.as_usize().is_multiple_of(4) {
        return Err(MISALIGNED);
    }
    let word = read_word(site, site.at).ok_or(UNREADABLE)?;
    let (plan, method) = classify(word)?;
    let starts_function = site.function.is_some_and(|(start, _)| start == site.at);
    if !starts_function && let Some(previous) = read_word(site, site.at.wrapping_offset(-4)) {
        refuse_second_halves(previous)?;
    }
    refuse_signal_return(site, word)?;
    if exclusive::is_inside_region(site) {
        return Err(EXCLUSIVE_REGION);
    }
    Ok(Decoded { plan, len_bytes: 4, method })
}

fn read_word(site: &Site<'_>, at: CodeAddr) -> Option<u32> {
    let mut bytes = [0; 4];
    (site.text.read(at, &mut bytes) == 4).then(|| u32::from_le_bytes(bytes))
}

/// Refuses what must directly follow the instruction `previous` in one uninterrupted pair.
fn refuse_second_halves(previous: u32) -> Result<(), Refusal> {
    if insn::MOVPRFX.matches(previous) || insn::MOVPRFX_PREDICATED.matches(previous) {
        return Err(MOVPRFX);
    }
    if insn::PACM.matches(previous) {
        return Err(PAUTH_LR);
    }
    Ok(())
}

/// Refuses the pair of words by which unwinders know Linux's way out of a signal's handler.
fn refuse_signal_return(site: &Site<'_>, word: u32) -> Result<(), Refusal> {
    let [first, second] = insn::SIGNAL_RETURN;
    let (at, other) = match word {
        _ if word == first => (site.at.wrapping_add(4), second),
        _ if word == second => (site.at.wrapping_offset(-4), first),
        _ => return Ok(()),
    };
    if read_word(site, at) == Some(other) { Err(SIGNAL_RETURN) } else { Ok(()) }
}

/// Decides about one word, whatever surrounds it.
pub(crate) fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
    if insn::BRANCH_EXCEPTION_SYSTEM.matches(word) {
        return match classify_branch(word) {
            Some(decided) => decided,
            None => system::classify(word),
        };
    }
    if let Some(plan) = classify_address(word) {
        return Ok((plan, Method::Simulate));
    }
    if insn::LDR_LITERAL.matches(word) {
        return classify_literal(word);
    }
    refuse_by_group(word)?;
    Ok((Plan::OutOfLine, Method::Boost))
}

/// Branches; `None` where `word` is none that is known.
fn classify_branch(word: u32) -> Option<Result<(Plan, Method), Refusal>> {
    let rt = insn::rd(word);
    let rn = insn::rn(word);
    let when = if insn::field(word, 24, 1) == 0 { When::Zero } else { When::NonZero };
    let plan = if insn::B.matches(word) {
        Plan::Branch { offset: insn::offset26(word) }
    } else if insn::BL.matches(word) {
        Plan::BranchLink { offset: insn::offset26(word) }
    } else if insn::B_COND.matches(word) || insn::BC_COND.matches(word) {
        Plan::BranchCondition { cond: insn::field(word, 0, 4) as u8, offset: insn::offset19(word) }
    } else if insn::CBZ_CBNZ.matches(word) {
        let width = if word >> 31 == 0 { Width::W } else { Width::X };
        Plan::CompareBranch { rt, width, when, offset: insn::offset19(word) }
    } else if insn::TBZ_TBNZ.matches(word) {
        let bit = (insn::field(word, 31, 1) << 5 | insn::field(word, 19, 5)) as u8;
        Plan::TestBranch { rt, bit, when, offset: insn::offset14(word) }
    } else if insn::BR.matches(word) {
        Plan::BranchRegister { rn, kind: BranchKind::Jump }
    } else if insn::BLR.matches(word) {
        Plan::BranchRegister { rn, kind: BranchKind::Call }
    } else if insn::RET.matches(word) {
        Plan::BranchRegister { rn, kind: BranchKind::Return }
    } else if let Some(plan) = authenticated_branch(word) {
        return Some(Ok((plan, Method::Step)));
    } else if insn::RETASPPC.matches(word) || insn::RETASPPCR.matches(word) {
        return Some(Err(PAUTH_LR));
    } else if insn::ERET.matches(word) || insn::ERETA.matches(word) || insn::DRPS.matches(word) {
        return Some(Err(EXCEPTION_RETURN));
    } else {
        return None;
    };
    Some(Ok((plan, Method::Simulate)))
}

/// BRAA, BLRAA, RETAA and their forms with zero modifier and key B.
///
/// The register is authenticated in place in the slot, so nothing else is borrowed. The combined
/// instructions fault on failure only with FEAT_FPACCOMBINE, AUTIA does with FEAT_FPAC: on a core that has
/// the second and not the first, a failure is reported at the branch instead of at its (unusable) target.
fn authenticated_branch(word: u32) -> Option<Plan> {
    let key_b = insn::field(word, 10, 1);
    let rn = insn::rn(word);
    // C6.2.26 AUTIA: 0xdac1_1000 | key_b << 10 | modifier << 5 | Xd; AUTIZA: modifier 31, bit 13.
    let with_modifier =
        |rn: u8, modifier: u8| 0xdac1_1000 | key_b << 10 | u32::from(modifier) << 5 | u32::from(rn);
    let with_zero = |rn: u8| 0xdac1_33e0 | key_b << 10 | u32::from(rn);
    const SP: u8 = 31;
    const LR: u8 = 30;
    let plan = |rn, kind, authenticate| Plan::AuthenticatedBranch { rn, kind, authenticate };
    if insn::RETA.matches(word) {
        Some(plan(LR, BranchKind::Return, with_modifier(LR, SP)))
    } else if rn == 31 {
        // XZR as a pointer: nothing to authenticate, and no slot could hold it. Left to the default refusal.
        None
    } else if insn::BRAZ.matches(word) {
        Some(plan(rn, BranchKind::Jump, with_zero(rn)))
    } else if insn::BLRAZ.matches(word) {
        Some(plan(rn, BranchKind::Call, with_zero(rn)))
    } else if insn::BRA.matches(word) {
        Some(plan(rn, BranchKind::Jump, with_modifier(rn, insn::rd(word))))
    } else if insn::BLRA.matches(word) {
        Some(plan(rn, BranchKind::Call, with_modifier(rn, insn::rd(word))))
    } else {
        None
    }
}

fn classify_address(word: u32) -> Option<Plan> {
    let rd = insn::rd(word);
    if insn::ADR.matches(word) {
        Some(Plan::Address { rd, offset: insn::adr_immediate(word) })
    } else if insn::ADRP.matches(word) {
        Some(Plan::PageAddress { rd, pages: insn::adr_immediate(word) })
    } else {
        None
    }
}

/// Load register (literal): C4.1.94, opc in bits 31:30.
fn classify_literal(word: u32) -> Result<(Plan, Method), Refusal> {
    let offset = insn::offset19(word);
    let rt = insn::rd(word);
    if insn::LDR_LITERAL_SIMD.matches(word) {
        // LDR (immediate, SIMD&FP, unsigned offset) with imm12 = 0 and Rn = X16, C7.2.208.
        let load = match word >> 30 {
            0b00 => 0xbd40_0000,
            0b01 => 0xfd40_0000,
            0b10 => 0x3dc0_0000,
            _ => return Err(UNALLOCATED),
        } | 16 << 5
            | u32::from(rt);
        return Ok((Plan::LoadLiteralSimd { load, offset }, Method::Step));
    }
    let literal = match word >> 30 {
        0b00 => Literal::Word,
        0b01 => Literal::Doubleword,
        0b10 => Literal::SignedWord,
        _ => return Ok((Plan::Nop, Method::Simulate)),
    };
    Ok((Plan::LoadLiteral { rt, literal, offset }, Method::Simulate))
}

/// Refusals outside the branch, exception and system space.
fn refuse_by_group(word: u32) -> Result<(), Refusal> {
    if insn::monitor(word) != insn::Monitor::Untouched {
        return Err(EXCLUSIVE);
    }
    if insn::EXCLUSIVE_UNPRIVILEGED.matches(word) {
        // The rest of the FEAT_LSUI space (CAST, …): single accesses, but new; refused until someone needs
        // them.
        return Err(UNALLOCATED);
    }
    if insn::MOPS.matches(word) {
        return Err(MEMORY_COPY);
    }
    if insn::MOVPRFX.matches(word) || insn::MOVPRFX_PREDICATED.matches(word) {
        return Err(MOVPRFX);
    }
    if insn::AUTISPPC.matches(word) || insn::PACISPPC.matches(word) {
        return Err(PAUTH_LR);
    }
    // C4.1, bits 28:25: 0000 is SME where bit 31 is set, else reserved; 0001 and 0011 are unallocated.
    match insn::field(word, 25, 4) {
        0b0000 if word >> 31 == 1 => Ok(()),
        0b0000 if insn::UDF.matches(word) => Err(UNDEFINED),
        0b0000 | 0b0001 | 0b0011 => Err(UNALLOCATED),
        _ => Ok(()),
    }
}

/// The bytes between a function's symbol and the first place that every call runs through with the
/// return address still unsigned in X30: past a BTI landing pad, before PACIASP.
pub(crate) fn entry_offset(first: &[u8]) -> usize {
    match insn::word_at(first) {
        Some(word) if insn::BTI.matches(word) => 4,
        _ => 0,
    }
}

/// The bytes between a function's symbol and the last place that counts as its entry: behind PACIASP or
/// PACIBSP, where that comes first or behind the landing pad. A return probe there is set at
/// [`entry_offset`]: every call that runs through one place runs through the other, and at the earlier one
/// X30 is not signed yet.
pub(crate) fn entry_end(first: &[u8]) -> usize {
    let offset = entry_offset(first);
    match first.get(offset..).and_then(insn::word_at) {
        Some(word) if insn::PACI_SP.matches(word) => offset + 4,
        _ => offset,
    }
}

const MISALIGNED: Refusal =
    Refusal::not_an_instruction("aarch64.misaligned", "instructions lie at multiples of four bytes");
const UNREADABLE: Refusal = Refusal::invalid("aarch64.unreadable", "the instruction's text cannot be read");
const UNDEFINED: Refusal = Refusal::invalid(
    "aarch64.undefined",
    "udf is permanently undefined: padding or data, not an instruction to probe",
);
const UNALLOCATED: Refusal = Refusal::unsupported(
    "aarch64.unallocated",
    "the word is not an instruction that this backend knows, and unknown ones may depend on their address",
);
const EXCLUSIVE: Refusal = Refusal::unsupported(
    "aarch64.exclusive",
    "an exclusive load or store loses its monitor to the probe's trap, so that its loop would never end",
);
const EXCLUSIVE_REGION: Refusal = Refusal::unsupported(
    "aarch64.exclusive_region",
    "the place lies between an exclusive load and its store, whose monitor the probe's trap would clear",
);
const MEMORY_COPY: Refusal = Refusal::unsupported(
    "aarch64.mops",
    "the parts of a memory copy or set sequence must run one after the other in place: the kernel may restart it",
);
const MOVPRFX: Refusal = Refusal::unsupported(
    "aarch64.movprfx",
    "movprfx and the instruction that it prefixes must lie next to each other",
);
const SIGNAL_RETURN: Refusal = Refusal::unsupported(
    "aarch64.signal_return",
    "unwinders know the way out of a signal's handler by these two words",
);
const PAUTH_LR: Refusal = Refusal::unsupported(
    "aarch64.pauth_lr",
    "the instruction signs or authenticates with its own address (FEAT_PAuth_LR)",
);
const EXCEPTION_RETURN: Refusal = Refusal::unsupported(
    "aarch64.exception_return",
    "an exception return takes its state from registers that the probe's trap overwrites",
);

#[cfg(test)]
mod tests;
