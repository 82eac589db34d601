//! Unwind information for return stubs, so that a stack walk passes through them (RET_8, RET_7).
//!
//! An unwinder that finds a stub's address as a return address looks up the frame description of the stub's
//! chunk. The description says: the caller's registers and stack pointer are the present ones, and its return
//! address is in a table, at the stub's number. How the description finds that number differs: [`x86`],
//! [`aarch64`], [`ppc64`], [`ppc32`], [`riscv64`].
//!
//! The *table* holds one word per stub of the chunk, number 0 included: the **final** return address, in the
//! program's own text, of the call that the stub was handed out for. Where a second return probe finds the
//! first one's stub as its return address, its word is a copy of the first one's word, not the stub: then one
//! step of the unwinder passes the whole chain. The word is written before the stub replaces a return address
//! ([`Host::stubs_added`](probe_core::host::Host::stubs_added)).
//!
//! The frame's CFA is one byte above its stack pointer, on purpose: libgcc's second phase recognises the
//! frame with the handler by its CFA, and would take a stub's frame with the same CFA as the probed
//! function's for it.
//!
//! A host needs this if its unwinder reads DWARF: a Linux process does. All of it is pure, and called at
//! registration. Format: Linux Standard Base core 5.0, 10.6 (.eh_frame); DWARF 5, 2.5 and 6.4.
//!
//! The other direction is [`walk`]: from a hit through frames like these.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aarch64;
pub mod arm;
pub mod ppc32;
pub mod ppc64;
pub mod riscv64;
mod section;
pub mod walk;
pub mod x86;

use probe_core::CodeAddr;
use section::{Machine, Section};

/// The room that the description of one chunk takes at most, in bytes.
pub const EH_FRAME_LEN: usize = 224;

/// The byte order of the described program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

/// The frame description of one chunk of return stubs, as the bytes of an `.eh_frame` section.
///
/// glibc's and libgcc's `__register_frame` take the address of the section; LLVM's libunwind takes that of
/// the frame description itself, at [`EhFrame::description_at`]. The bytes must stay where they are while
/// registered; they hold absolute addresses only, so it does not matter where that is.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub struct EhFrame {
    /// The section: a common information entry, a frame description entry, and zeros, which are the
    /// terminator.
    pub bytes: [u8; EH_FRAME_LEN],
    /// Where in `bytes` the frame description entry starts.
    pub description_at: usize,
}

/// A chunk of return stubs, and where the table of their real return addresses is (see above).
#[derive(Clone, Copy, Debug)]
pub struct Stubs {
    /// The chunk's first byte.
    pub chunk: CodeAddr,
    /// Its length in bytes.
    pub len_bytes: usize,
    /// The address of the table.
    pub table: usize,
}

/// The section for `stubs`: the part that is the same everywhere, and the rules that `rules` adds to it.
fn describe(machine: &'static Machine, stubs: &Stubs, rules: impl FnOnce(&mut Section)) -> EhFrame {
    let mut section = Section::new(machine);
    let (stack_pointer, return_address) = (machine.stack_pointer, machine.return_address);
    let cie = section.begin();
    section.u32(0);
    // Version 1, augmentation "zR".
    section.put(&[1, b'z', b'R', 0, machine.code_alignment, machine.minus_word(), return_address]);
    // One byte of augmentation data: absolute pointers.
    section.put(&[1, 0]);
    section.put(&[section::DW_CFA_DEF_CFA, stack_pointer, 1]);
    section.rule(stack_pointer, |section| section.register(stack_pointer, 0));
    section.end(cie);

    let description_at = section.begin();
    section.u32(description_at as u32 + 4);
    section.word(stubs.chunk.as_usize());
    section.word(stubs.len_bytes);
    section.put(&[0]);
    rules(&mut section);
    section.end(description_at);
    EhFrame { bytes: section.bytes, description_at }
}

#[cfg(test)]
mod tests {
    use super::*;
    use section::{DW_CFA_VAL_EXPRESSION, DW_OP_DEREF};

    const STUBS: Stubs = Stubs { chunk: CodeAddr::new(0x12_0000), len_bytes: 0xfff8, table: 0x7777_0000 };

    fn number(bytes: &[u8], order: ByteOrder) -> usize {
        let add = |sum: usize, byte: &u8| sum << 8 | usize::from(*byte);
        match order {
            ByteOrder::Little => bytes.iter().rev().fold(0, add),
            ByteOrder::Big => bytes.iter().fold(0, add),
        }
    }

    /// Follows the lengths and pointers of a description, and answers the expressions of its rules with their
    /// registers.
    fn rules(frame: &EhFrame, word: usize, order: ByteOrder) -> impl Iterator<Item = (u8, &[u8])> {
        let at = |at: usize, len: usize| number(&frame.bytes[at..at + len], order);
        assert_eq!(at(0, 4) + 4, frame.description_at);
        let fde = frame.description_at;
        let end = fde + 4 + at(fde, 4);
        assert_eq!(at(fde + 4, 4), fde + 4, "leads back to the CIE at 0");
        assert_eq!((at(fde + 8, word), at(fde + 8 + word, word)), (0x12_0000, 0xfff8));
        assert!(frame.bytes[end..].iter().all(|byte| *byte == 0));
        assert_eq!(number(&frame.bytes[end..end + 4], order), 0, "a terminator fits behind");
        let mut rest = &frame.bytes[fde + 9 + 2 * word..end];
        core::iter::from_fn(move || {
            let [DW_CFA_VAL_EXPRESSION, register, len, ..] = *rest else {
                assert!(rest.iter().all(|byte| *byte == 0), "nothing but padding behind the rules");
                return None;
            };
            let (expression, behind) = rest[3..].split_at(usize::from(len));
            rest = behind;
            Some((register, expression))
        })
    }

    fn look_up_is_last(frame: &EhFrame, word: usize, order: ByteOrder, registers: &[u8]) {
        let mut found = rules(frame, word, order);
        let (register, expression) = found.next().expect("the return address has a rule");
        assert_eq!(register, registers[0]);
        let [rest @ .., plus, deref] = expression else { panic!("{expression:x?}") };
        assert_eq!((*plus, *deref), (section::DW_OP_PLUS, DW_OP_DEREF));
        assert_eq!(number(&rest[rest.len() - word..], order), STUBS.table);
        let others: [_; 2] = core::array::from_fn(|_| found.next().map(|(register, _)| register));
        assert_eq!(others, [registers.get(1).copied(), None]);
    }

    #[test]
    fn every_section_is_well_formed() {
        use ByteOrder::{Big, Little};
        look_up_is_last(&x86::eh_frame(x86::Mode::Long, &STUBS, 16), 8, Little, &[16]);
        look_up_is_last(&x86::eh_frame(x86::Mode::Protected, &STUBS, 16), 4, Little, &[8]);
        look_up_is_last(&aarch64::eh_frame(&STUBS), 8, Little, &[30]);
        look_up_is_last(&riscv64::eh_frame(&STUBS), 8, Little, &[1]);
        look_up_is_last(&ppc32::eh_frame(&STUBS), 4, Big, &[65]);
        for (order, toc_at) in [(Big, 40), (Big, 24), (Little, 24)] {
            look_up_is_last(&ppc64::eh_frame(order, toc_at, &STUBS, 4), 8, order, &[65, 2]);
        }
    }

    /// Where each branch of an expression leads, from its own place.
    #[test]
    fn branches_lead_to_operations() {
        branches(&ppc64::eh_frame(ByteOrder::Little, 24, &STUBS, 4), 8, ByteOrder::Little);
        branches(&ppc32::eh_frame(&STUBS), 4, ByteOrder::Big);
    }

    fn branches(frame: &EhFrame, word: usize, order: ByteOrder) {
        for (_, expression) in rules(frame, word, order) {
            let starts = section::operations(expression);
            for &at in starts.as_slice() {
                if [section::DW_OP_BRA, section::DW_OP_SKIP].contains(&expression[at]) {
                    let to = at + 3 + number(&expression[at + 1..at + 3], order);
                    assert!(to == expression.len() || starts.as_slice().contains(&to), "{at} to {to}");
                }
            }
        }
    }
}
