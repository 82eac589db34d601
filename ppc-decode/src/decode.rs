//! From words to a decision: [`Plan`] or a refusal. The tables are in [`insn`].
//!
//! Called at registration only. Pure.

mod region;

use crate::insn::{self, Class, Row};
use crate::{Mode, Reason};
use core::marker::PhantomData;
use probe_core::CodeAddr;
use probe_core::arch::{Decoded, Method, Site, Text};
use probe_core::error::Refusal;

/// How an instruction is executed at a hit.
///
/// A variant with a word is simulated from that word, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Runs unchanged in a slot.
    Copy,
    /// A prefixed PC-relative instruction: runs in a slot, its displacement corrected by the distance.
    Relocate,
    /// `sc`: runs unchanged in a slot.
    Sc,
    /// `scv`: runs in a slot; the link register, which it sets to its next instruction, is corrected.
    Scv,
    /// `mfmsr`: runs in a slot for its privilege check; the result is the place's MSR, not the slot's.
    Mfmsr(u32),
    /// `bctar`: the slot reads the target address register, the branch is then simulated.
    ///
    /// TAR is in no trap frame. Reading it in the trap would fault there where the facility is off; in the
    /// slot the fault is the program's, as it would be in place.
    Bctar(u32),
    /// A no-op.
    Nop,
    /// `b`, `ba`, `bl`, `bla`.
    B(u32),
    /// `bc` in all forms.
    Bc(u32),
    /// `bclr` in all forms.
    Bclr(u32),
    /// `bcctr` in all forms.
    Bcctr(u32),
    /// `addpcis`.
    Addpcis(u32),
    /// `mfspr` of XER, LR or CTR.
    Mfspr(u32),
    /// `mtspr` of LR or CTR.
    Mtspr(u32),
}

const _: () = assert!(size_of::<Plan>() <= 16);

impl Plan {
    /// The cheapest way to execute it.
    #[must_use]
    pub const fn method(self) -> Method {
        match self {
            Self::Copy | Self::Relocate | Self::Sc => Method::Boost,
            Self::Scv | Self::Mfmsr(_) | Self::Bctar(_) => Method::Step,
            _ => Method::Simulate,
        }
    }
}

/// Pristine text as words.
pub struct Words<'a, M> {
    text: &'a dyn Text,
    _mode: PhantomData<M>,
}

impl<'a, M: Mode> Words<'a, M> {
    /// The words of `text`.
    #[must_use]
    pub fn new(text: &'a dyn Text) -> Self {
        Self { text, _mode: PhantomData }
    }

    /// The word at `at`, where it is readable.
    pub fn at(&self, at: CodeAddr) -> Option<u32> {
        let mut bytes = [0; 4];
        (self.text.read(at, &mut bytes) == 4).then(|| M::insn(bytes))
    }

    /// Fills `out` with the words from `at` and returns how many were readable.
    pub fn fill(&self, at: CodeAddr, out: &mut [u32]) -> usize {
        let mut bytes = [0; 128];
        let mut filled = 0;
        for chunk in out.chunks_mut(bytes.len() / 4) {
            let wanted = &mut bytes[..chunk.len() * 4];
            let words = self.text.read(at.wrapping_add(filled * 4), wanted) / 4;
            for (word, raw) in chunk.iter_mut().zip(bytes.as_chunks::<4>().0).take(words) {
                *word = M::insn(*raw);
            }
            filled += words;
            if words < chunk.len() {
                break;
            }
        }
        filled
    }
}

/// Decides how the instruction at `site` is executed.
pub fn decode<M: Mode>(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
    if !site.at.as_usize().is_multiple_of(4) {
        return Err(M::refusal(Reason::Misaligned));
    }
    let words = Words::<M>::new(site.text);
    let word = words.at(site.at).ok_or(M::refusal(Reason::Truncated))?;
    match before(&words, site) {
        _ if !M::IS_64_BIT => {}
        Some(before) if insn::opcd(before) == insn::OP_PREFIX => return Err(M::refusal(Reason::Suffix)),
        Some(before) if insn::is_toc_restore(word) && insn::is_call(before) => {
            return Err(M::refusal(Reason::TocRestore));
        }
        _ => {}
    }
    let (plan, len_bytes) = if M::IS_64_BIT && insn::opcd(word) == insn::OP_PREFIX {
        let suffix = words.at(site.at.wrapping_add(4)).ok_or(M::refusal(Reason::Truncated))?;
        (prefixed::<M>(word, suffix, site.at)?, 8)
    } else {
        (single::<M>(word)?, 4)
    };
    if region::is_reserved(&words, site) {
        return Err(M::refusal(Reason::ReservationRegion));
    }
    Ok(Decoded { plan, len_bytes, method: plan.method() })
}

/// The word before the place, if it is of the same function.
fn before<M: Mode>(words: &Words<'_, M>, site: &Site<'_>) -> Option<u32> {
    let is_first = site.function.is_some_and(|(start, _)| site.at <= start);
    if is_first { None } else { words.at(site.at.wrapping_offset(-4)) }
}

/// Classifies a word that is an instruction by itself.
fn single<M: Mode>(word: u32) -> Result<Plan, Refusal> {
    match word {
        insn::NOP | insn::XNOP => return Ok(Plan::Nop),
        _ => {}
    }
    plan::<M>(insn::PRIMARY[insn::opcd(word) as usize].class, word)
}

/// Turns a class into a plan, looking into the extended tables where the class says so.
fn plan<M: Mode>(class: Class, word: u32) -> Result<Plan, Refusal> {
    match class {
        // Simulated, or longer than a word: a 32-bit processor would not execute it.
        Class::Prefix | Class::Bctar | Class::Addpcis | Class::Scv if !M::IS_64_BIT => {
            Err(M::refusal(Reason::Unallocated))
        }
        Class::Plain => Ok(Plan::Copy),
        Class::B => Ok(Plan::B(word)),
        Class::Bc => Ok(Plan::Bc(word)),
        Class::Bclr => Ok(Plan::Bclr(word)),
        // Book I, "Branch Conditional to Count Register": with "decrement and test CTR" the form is invalid.
        Class::Bcctr if insn::bo_decrements(insn::rt(word)) => Err(M::refusal(Reason::InvalidForm)),
        Class::Bcctr => Ok(Plan::Bcctr(word)),
        Class::Bctar => Ok(Plan::Bctar(word)),
        Class::Addpcis => Ok(Plan::Addpcis(word)),
        Class::Sc => Ok(Plan::Sc),
        Class::Scv => Ok(Plan::Scv),
        Class::Mfmsr if !M::IS_64_BIT => Err(M::refusal(Reason::Mfmsr)),
        Class::Mfmsr => Ok(Plan::Mfmsr(word)),
        // The last bit is reserved, and implementations differ in what they make of it.
        Class::Mfspr | Class::Mtspr if !M::IS_64_BIT && word & 1 != 0 => Err(M::refusal(Reason::InvalidForm)),
        Class::Mfspr => move_from::<M>(word),
        Class::Mtspr => move_to::<M>(word),
        Class::Refuse(reason) => Err(M::refusal(reason)),
        Class::SystemCall => extended::<M>(&insn::SYSTEM_CALL, word & 3, word),
        Class::Xl if insn::xo5(word) == insn::XO_ADDPCIS => plan::<M>(Class::Addpcis, word),
        Class::Xl => extended::<M>(&insn::XL, insn::xo(word), word),
        Class::X => plan::<M>(insn::find_also(&insn::X, book_e::<M>(&insn::X_32), insn::xo(word)), word),
        // `decode` takes prefixes out before; alone, a prefix is no instruction.
        Class::Prefix => Err(M::refusal(Reason::Truncated)),
    }
}

/// Looks up an extended opcode in a table that is complete.
fn extended<M: Mode>(table: &'static [Row], code: u32, word: u32) -> Result<Plan, Refusal> {
    plan::<M>(insn::find(table, code).ok_or(M::refusal(Reason::Unallocated))?, word)
}

/// The rows that 32-bit implementations add to a table; none in 64-bit mode.
const fn book_e<M: Mode>(rows: &'static [Row]) -> &'static [Row] {
    if M::IS_64_BIT { &[] } else { rows }
}

fn move_from<M: Mode>(word: u32) -> Result<Plan, Refusal> {
    match insn::spr(word) {
        insn::SPR_XER | insn::SPR_LR | insn::SPR_CTR => Ok(Plan::Mfspr(word)),
        spr => plan::<M>(insn::find_also(&insn::SPRS, book_e::<M>(&insn::SPRS_32), spr), word),
    }
}

/// A write to XER is no exception: which of its bits exist is the processor's affair.
fn move_to<M: Mode>(word: u32) -> Result<Plan, Refusal> {
    match insn::spr(word) {
        insn::SPR_LR | insn::SPR_CTR => Ok(Plan::Mtspr(word)),
        spr => plan::<M>(insn::find_also(&insn::SPRS, book_e::<M>(&insn::SPRS_32), spr), word),
    }
}

/// Classifies a prefixed instruction.
fn prefixed<M: Mode>(prefix: u32, suffix: u32, at: CodeAddr) -> Result<Plan, Refusal> {
    // Book I, "Instruction Prefix Formats": an alignment interrupt in place, none in a slot.
    if at.as_usize() % 64 == 60 {
        return Err(M::refusal(Reason::Crossing));
    }
    if prefix == insn::PNOP_PREFIX {
        return pnop::<M>(suffix);
    }
    let kind = (prefix >> 24 & 3) as u8;
    let known =
        insn::PREFIXED.iter().any(|row| row.kind == kind && u32::from(row.suffix) == insn::opcd(suffix));
    if !known {
        return Err(M::refusal(Reason::Unallocated));
    }
    // Only 8LS and MLS have the R bit; with it RA must be 0, else the form is invalid.
    let has_r = matches!(kind, 0 | 2);
    match has_r && insn::prefix_is_pc_relative(prefix) {
        true if insn::ra(suffix) != 0 => Err(M::refusal(Reason::InvalidForm)),
        true => Ok(Plan::Relocate),
        false => Ok(Plan::Copy),
    }
}

/// Whether a prefixed instruction of `at` addresses memory from where it lies.
pub fn is_relocated<M: Mode>(prefix: u32, suffix: u32, at: CodeAddr) -> Result<bool, Refusal> {
    Ok(prefixed::<M>(prefix, suffix, at)? == Plan::Relocate)
}

/// Book I, "Prefixed No-Operation Instruction": a suffix that is a branch, a system call, a trap or a
/// context-synchronising instruction makes it an invalid form.
fn pnop<M: Mode>(suffix: u32) -> Result<Plan, Refusal> {
    match insn::PRIMARY[insn::opcd(suffix) as usize].class {
        Class::Plain | Class::Refuse(Reason::Attn) => Ok(Plan::Copy),
        _ => Err(M::refusal(Reason::InvalidForm)),
    }
}
