//! What the simulation must know about a backend's saved registers.

use crate::mode::Mode;
use probe_core::arch::Regs;

/// Bits of (E/R)FLAGS. Source: SDM volume 1, 3.4.3.
#[derive(Debug)]
pub enum FlagBits {}

impl FlagBits {
    /// Carry.
    pub const CF: u64 = 1 << 0;
    /// Parity.
    pub const PF: u64 = 1 << 2;
    /// Auxiliary carry.
    pub const AF: u64 = 1 << 4;
    /// Zero.
    pub const ZF: u64 = 1 << 6;
    /// Sign.
    pub const SF: u64 = 1 << 7;
    /// Single-step trap.
    pub const TF: u64 = 1 << 8;
    /// Interrupts enabled.
    pub const IF: u64 = 1 << 9;
    /// Direction of string instructions.
    pub const DF: u64 = 1 << 10;
    /// Overflow.
    pub const OF: u64 = 1 << 11;
    /// I/O privilege level, two bits.
    pub const IOPL: u64 = 3 << 12;
    /// Nested task.
    pub const NT: u64 = 1 << 14;
    /// Resume.
    pub const RF: u64 = 1 << 16;
    /// Virtual-8086 mode.
    pub const VM: u64 = 1 << 17;
    /// Alignment check.
    pub const AC: u64 = 1 << 18;
    /// CPUID is there.
    pub const ID: u64 = 1 << 21;
}

/// A backend's saved registers, as the shared simulation sees them.
///
/// Values are 64 bits wide here; 32-bit backends take the low half and return it zero-extended.
pub trait Registers: Regs {
    /// The mode whose registers these are.
    type Mode: Mode;

    /// General register `number` by its encoding: 0 AX, 1 CX, 2 DX, 3 BX, 4 SP, 5 BP, 6 SI, 7 DI, 8 to 15.
    /// Other numbers, and 8 to 15 in 32-bit mode, read as 0.
    fn general(&self, number: u8) -> u64;

    /// Sets general register `number`; other numbers are ignored.
    fn set_general(&mut self, number: u8, value: u64);

    /// The flags.
    fn flags(&self) -> u64;

    /// Sets the flags.
    fn set_flags(&mut self, flags: u64);

    /// The code segment's selector; its low two bits are the privilege level.
    fn code_segment(&self) -> u64;
}

/// The borrowed register's value, kept between the slot's two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepState {
    pub(crate) saved: u64,
}
