//! ppc32: as [`ppc64`](crate::ppc64), with the LR save word in the second word of the caller's frame, and
//! without a TOC pointer.
//!
//! Register numbers: Power Architecture 32-bit ABI Supplement 1.0, "DWARF Register Number Mapping" (in
//! `.eh_frame` LR is 65).

use crate::ppc64::{LR, SP, look_up};
use crate::section::Machine;
use crate::walk::Machine as Walked;
use crate::{ByteOrder, EhFrame, Stubs, describe};
use gimli::Vendor;

/// The LR save word, from the caller's stack pointer.
const LR_SAVE: u8 = 4;
/// The size of a stub, and of a word of the table.
const STUB_LEN: usize = 4;

static MACHINE: Machine =
    Machine { stack_pointer: SP, return_address: LR, code_alignment: 4, word: 4, order: ByteOrder::Big };

/// Describes a chunk of stubs.
///
/// The chunk is aligned to the power of two that is its length or the next above it, as
/// [`Calls::fill_stubs`](probe_core::arch::Calls::fill_stubs) says.
#[must_use]
pub fn eh_frame(stubs: &Stubs) -> EhFrame {
    describe(&MACHINE, stubs, |section| {
        section.rule(LR, |section| look_up(section, stubs, STUB_LEN, LR_SAVE));
    })
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
