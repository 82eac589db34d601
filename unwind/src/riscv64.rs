//! riscv64: the description takes the stub's address from RA, which libgcc restores with the other registers
//! from the probed function's frame. LLVM's libunwind restores the program counter only; it is not supported,
//! as no tested target of Rust links it.
//!
//! Register numbers: RISC-V ELF psABI 1.0, DWARF.

use crate::section::*;
use crate::walk::Machine as Walked;
use crate::{ByteOrder, EhFrame, Stubs, describe};
use gimli::Vendor;

const RA: u8 = 1;
const SP: u8 = 2;

static MACHINE: Machine =
    Machine { stack_pointer: SP, return_address: RA, code_alignment: 1, word: 8, order: ByteOrder::Little };

/// Describes a chunk of stubs that are as long as a word of the table: eight bytes.
#[must_use]
pub fn eh_frame(stubs: &Stubs) -> EhFrame {
    describe(&MACHINE, stubs, |section| {
        section.rule(RA, |section| {
            section.register(RA, 0);
            section.constant(stubs.chunk.as_usize());
            section.put(&[DW_OP_MINUS]);
            section.constant(stubs.table);
            section.put(&[DW_OP_PLUS, DW_OP_DEREF]);
        });
    })
}

/// How stacks are walked.
pub static FRAMES: Walked = Walked {
    stack_pointer: 2,
    return_address: 1,
    names: &[
        "", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
        "x30", "x31",
    ],
    link: None,
    saved: &[1, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27],
    chain: None,
    address_mask: usize::MAX,
    vendor: Vendor::Default,
    signal: None,
};
