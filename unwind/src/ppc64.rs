//! ppc64: the description takes the stub's address from the LR save doubleword of the caller's frame, where a
//! function that calls another one has put it. If that is no stub of the chunk (a leaf, interrupted by a
//! signal), it takes LR, which libgcc's unwinder knows and LLVM's does not. If neither is, the answer is 0
//! (the table's first word): the end of the walk.
//!
//! r2 needs a rule: a caller in another object has its TOC pointer saved in its frame, and reloads it at the
//! return address (`ld 2,24(1)` on ELFv2, `ld 2,40(1)` on ELFv1). Unwinders look for that instruction at the
//! return address, and behind a stub only this rule can look at the real one.
//!
//! Register numbers: ELFv2 ABI 1.5, 2.4.

use crate::section::*;
use crate::walk::Machine as Walked;
use crate::{ByteOrder, EhFrame, Stubs, describe};
use gimli::Vendor;

pub(crate) const LR: u8 = 65;
pub(crate) const SP: u8 = 1;
const TOC: u8 = 2;
/// The LR save doubleword, from the caller's stack pointer; the same on both ABIs.
const LR_SAVE: u8 = 16;

static BIG: Machine =
    Machine { stack_pointer: SP, return_address: LR, code_alignment: 4, word: 8, order: ByteOrder::Big };
static LITTLE: Machine =
    Machine { stack_pointer: SP, return_address: LR, code_alignment: 4, word: 8, order: ByteOrder::Little };

/// Describes a chunk of stubs of `stub_len_bytes` bytes each, of a program whose frames have the TOC pointer
/// at `toc_at` (24 on ELFv2, 40 on ELFv1).
///
/// The chunk is aligned to the power of two that is its length or the next above it, as
/// [`Calls::fill_stubs`](probe_core::arch::Calls::fill_stubs) says.
#[must_use]
pub fn eh_frame(order: ByteOrder, toc_at: u8, stubs: &Stubs, stub_len_bytes: usize) -> EhFrame {
    let machine = match order {
        ByteOrder::Big => &BIG,
        ByteOrder::Little => &LITTLE,
    };
    describe(machine, stubs, |section| {
        section.rule(LR, |section| look_up(section, stubs, stub_len_bytes, LR_SAVE));
        section.rule(TOC, |section| {
            look_up(section, stubs, stub_len_bytes, LR_SAVE);
            restored_toc(section, toc_at);
        });
    })
}

/// `*(table + distance / stub_len_bytes * word)`, where distance is how far a stub's address lies above the
/// chunk's start. `lr_save` is where the LR save word is, from the caller's stack pointer.
pub(crate) fn look_up(section: &mut Section, stubs: &Stubs, stub_len_bytes: usize, lr_save: u8) {
    let word = section.word_len();
    section.register(SP, lr_save);
    section.put(&[DW_OP_DEREF]);
    distance(section, stubs);
    // What is dropped for LR: four bytes, a constant's opcode and word, and a subtraction.
    skip_if_in_chunk(section, stubs, 6 + word as u8);
    section.put(&[DW_OP_DROP]);
    section.register(LR, 0);
    distance(section, stubs);
    skip_if_in_chunk(section, stubs, 2);
    section.put(&[DW_OP_DROP, DW_OP_LIT0]);
    section.put(&[DW_OP_LIT0 + (word / stub_len_bytes) as u8, DW_OP_MUL]);
    section.constant(stubs.table);
    section.put(&[DW_OP_PLUS, DW_OP_DEREF]);
}

fn distance(section: &mut Section, stubs: &Stubs) {
    section.constant(stubs.chunk.as_usize());
    section.put(&[DW_OP_MINUS]);
}

/// Skips the next `bytes` if the distance on top of the stack is less than the chunk's size (it is unsigned:
/// shifted).
fn skip_if_in_chunk(section: &mut Section, stubs: &Stubs, bytes: u8) {
    let log2 = stubs.len_bytes.next_power_of_two().trailing_zeros() as u8;
    section.put(&[DW_OP_DUP, DW_OP_CONST1U, log2, DW_OP_SHR, DW_OP_LIT0, DW_OP_EQ]);
    section.branch(DW_OP_BRA, bytes);
}

/// r2: from the caller's TOC doubleword, if the instruction at the return address reloads it; else as it is.
fn restored_toc(section: &mut Section, toc_at: u8) {
    const RELOAD: u32 = 58 << 26 | 2 << 21 | 1 << 16;
    // No return address: nothing to look at.
    section.put(&[DW_OP_DUP]);
    section.branch(DW_OP_BRA, 5);
    section.register(TOC, 0);
    section.branch(DW_OP_SKIP, 19);
    section.put(&[DW_OP_DEREF_SIZE, 4, DW_OP_CONST4U]);
    section.u32(RELOAD | u32::from(toc_at));
    section.put(&[DW_OP_EQ]);
    section.branch(DW_OP_BRA, 5);
    section.register(TOC, 0);
    section.branch(DW_OP_SKIP, 3);
    section.register(SP, toc_at);
    section.put(&[DW_OP_DEREF]);
}

/// How stacks are walked.
pub static FRAMES: Walked = Walked {
    stack_pointer: 1,
    return_address: 65,
    names: &[
        "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
        "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "r24", "r25", "r26", "r27", "r28", "r29",
        "r30", "r31",
    ],
    link: Some("lr"),
    saved: &[65, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14],
    chain: None,
    address_mask: usize::MAX,
    vendor: Vendor::Default,
    signal: None,
};
