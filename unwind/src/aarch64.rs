//! aarch64: the description takes the stub's address from X30 if that is a stub of the chunk, else from the
//! program counter.
//!
//! - libgcc restores X30 with the other registers from the probed function's frame (perhaps signed: only the
//!   bits that pointer authentication leaves alone are compared) and gives no access to the program counter.
//! - LLVM's libunwind restores the program counter only, and leaves X30 as it was when the walk began.
//!
//! Register numbers: DWARF for the Arm 64-bit Architecture (IHI 0057) 4.1.

use crate::section::*;
use crate::{ByteOrder, EhFrame, Stubs, describe};

const X30: u8 = 30;
const SP: u8 = 31;
const PC: u8 = 32;
/// The bits of a code address that pointer authentication never replaces: the smallest virtual address space
/// has 36.
const UNSIGNED_BITS: u64 = (1 << 36) - 1;

static MACHINE: Machine =
    Machine { stack_pointer: SP, return_address: X30, code_alignment: 4, word: 8, order: ByteOrder::Little };

/// Describes a chunk of stubs that are as long as a word of the table: eight bytes.
#[must_use]
pub fn eh_frame(stubs: &Stubs) -> EhFrame {
    describe(&MACHINE, stubs, |section| {
        section.rule(X30, |section| {
            // The stub's offset in the chunk, from X30 …
            section.register(X30, 0);
            section.constant(stubs.chunk.as_usize());
            section.put(&[DW_OP_MINUS]);
            section.constant(UNSIGNED_BITS as usize);
            section.put(&[DW_OP_AND, DW_OP_DUP]);
            section.constant(stubs.len_bytes);
            // … if it is less than the chunk's length, else from the program counter: 14 bytes.
            section.put(&[DW_OP_LT]);
            section.branch(DW_OP_BRA, 14);
            section.put(&[DW_OP_DROP]);
            section.register(PC, 0);
            section.constant(stubs.chunk.as_usize());
            section.put(&[DW_OP_MINUS]);
            section.constant(stubs.table);
            section.put(&[DW_OP_PLUS, DW_OP_DEREF]);
        });
    })
}
