//! x86-64 and i386: the stub's address lies right below the stack pointer; once the stub has run, the word
//! there is that address plus the length of its call. Not all unwinders can name the program counter in an
//! expression.
//!
//! Register numbers: System V ABI AMD64 1.0, 3.6.2; System V ABI i386 1.1, 2.4.2.

use crate::section::*;
use crate::{ByteOrder, EhFrame, Stubs, describe};

/// A mode of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 64-bit mode.
    Long,
    /// 32-bit protected mode.
    Protected,
}

static LONG: Machine =
    Machine { stack_pointer: 7, return_address: 16, code_alignment: 1, word: 8, order: ByteOrder::Little };
static PROTECTED: Machine =
    Machine { stack_pointer: 4, return_address: 8, code_alignment: 1, word: 4, order: ByteOrder::Little };

/// Describes a chunk of stubs of `stub_len_bytes` bytes each, a power of two that is longer than the call in
/// it.
#[must_use]
pub fn eh_frame(mode: Mode, stubs: &Stubs, stub_len_bytes: usize) -> EhFrame {
    let machine = match mode {
        Mode::Long => &LONG,
        Mode::Protected => &PROTECTED,
    };
    describe(machine, stubs, |section| {
        // table[(stub - chunk) / stub_len_bytes]. What the unwinder pushed first is left below.
        section.rule(machine.return_address, |section| {
            section.register(machine.stack_pointer, machine.minus_word());
            section.put(&[DW_OP_DEREF]);
            section.constant(stubs.chunk.as_usize());
            section.put(&[DW_OP_MINUS, DW_OP_LIT0 + stub_len_bytes.trailing_zeros() as u8, DW_OP_SHR]);
            section.put(&[DW_OP_LIT0 + machine.word as u8, DW_OP_MUL]);
            section.constant(stubs.table);
            section.put(&[DW_OP_PLUS, DW_OP_DEREF]);
        });
    })
}
