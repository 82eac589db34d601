//! x86-64 and i386: the stub's address lies right below the stack pointer; once the stub has run, the word
//! there is that address plus the length of its call. Not all unwinders can name the program counter in an
//! expression.
//!
//! Register numbers: System V ABI AMD64 1.0, 3.6.2; System V ABI i386 1.1, 2.4.2.

use crate::section::*;
use crate::walk::{Chain, Machine as Walked, Signal};
use crate::{ByteOrder, EhFrame, Stubs, describe};
use gimli::Vendor;

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

/// Linux's `struct rt_sigframe`, behind its return address: `ucontext` has flags, link and stack in 40 bytes,
/// then `struct sigcontext`.
const SIGNAL: Signal = Signal {
    // mov $15, %rax; syscall
    code: &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
    pc: 40 + 128,
    registers: &[
        (8, 40),
        (9, 48),
        (10, 56),
        (11, 64),
        (12, 72),
        (13, 80),
        (14, 88),
        (15, 96),
        (5, 104),
        (4, 112),
        (6, 120),
        (3, 128),
        (1, 136),
        (0, 144),
        (2, 152),
        (7, 160),
    ],
};

/// How stacks are walked in 64-bit mode.
pub static FRAMES: Walked = Walked {
    stack_pointer: 7,
    return_address: 16,
    names: &[
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ],
    link: None,
    saved: &[16, 6, 3, 12, 13, 14, 15],
    chain: Some(Chain { pointer: 6 }),
    address_mask: usize::MAX,
    vendor: Vendor::Default,
    signal: Some(SIGNAL),
};

/// How stacks are walked in 32-bit protected mode.
pub static PROTECTED_FRAMES: Walked = Walked {
    stack_pointer: 4,
    return_address: 8,
    names: &["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"],
    link: None,
    saved: &[8, 5, 3, 6, 7],
    chain: Some(Chain { pointer: 5 }),
    address_mask: usize::MAX,
    vendor: Vendor::Default,
    signal: None,
};
