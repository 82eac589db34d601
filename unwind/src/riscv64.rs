//! riscv64: the description takes the stub's address from RA, which libgcc restores with the other registers
//! from the probed function's frame. LLVM's libunwind restores the program counter only; it is not supported,
//! as no tested target of Rust links it.
//!
//! Register numbers: RISC-V ELF psABI 1.0, DWARF.

use crate::section::*;
use crate::{ByteOrder, EhFrame, Stubs, describe};

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
