//! aarch64: the description takes the stub's address from X30 if that is a stub of the chunk, else from the
//! program counter.
//!
//! - libgcc restores X30 with the other registers from the probed function's frame (perhaps signed: only the
//!   bits that pointer authentication leaves alone are compared) and gives no access to the program counter.
//! - LLVM's libunwind restores the program counter only, and leaves X30 as it was when the walk began.
//!
//! Register numbers: DWARF for the Arm 64-bit Architecture (IHI 0057) 4.1.

use crate::section::*;
use crate::walk::{Chain, Machine as Walked, Signal};
use crate::{ByteOrder, EhFrame, Stubs, describe};
use gimli::Vendor;

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

/// How stacks are walked. User addresses have 48 bits, or 52 for programs that ask for it.
pub static FRAMES: Walked = Walked {
    stack_pointer: 31,
    return_address: 30,
    names: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
        "x30", "sp",
    ],
    link: None,
    saved: &[30, 29, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28],
    chain: Some(Chain { pointer: 29 }),
    address_mask: 0x000f_ffff_ffff_ffff_u64 as usize,
    vendor: Vendor::AArch64,
    signal: Some(SIGNAL),
};

/// Linux's `struct rt_sigframe`: `siginfo` in 128 bytes, `ucontext` in 176, the fault's address, the
/// registers.
const SIGNAL: Signal = Signal {
    // mov x8, #139; svc #0
    code: &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4],
    pc: 312 + 32 * 8,
    registers: &[
        (19, 464),
        (20, 472),
        (21, 480),
        (22, 488),
        (23, 496),
        (24, 504),
        (25, 512),
        (26, 520),
        (27, 528),
        (28, 536),
        (29, 544),
        (30, 552),
        (31, 560),
    ],
};
