//! What an architecture's unwind information and frames look like. Each module of this crate that describes
//! stubs for an architecture has its `FRAMES`.

use gimli::Vendor;
use probe_core::arch::Memory;

/// Registers that are kept: those with numbers below 32, and the return address where that has a higher one.
pub(super) const REGISTERS: usize = 33;

/// The registers of a frame, by DWARF's numbers.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// The next instruction, or where a call returns to.
    pub pc: usize,
    values: [usize; REGISTERS],
    /// A bit for each register whose value lies in memory still, at the address that stands for it: few are
    /// ever asked for.
    stored: u64,
}

impl Registers {
    /// All are zero.
    #[must_use]
    pub const fn new(pc: usize) -> Self {
        Self { pc, values: [0; REGISTERS], stored: 0 }
    }

    /// Says what a register holds.
    pub fn set(&mut self, machine: &Machine, register: u16, value: usize) {
        let Some(index) = machine.index(register) else { return };
        if let Some(at) = self.values.get_mut(index) {
            *at = value;
            self.stored &= !(1 << index);
        }
    }

    /// Says where a register is stored.
    #[inline]
    pub(super) fn set_stored(&mut self, machine: &Machine, register: u16, addr: usize) {
        let Some(index) = machine.index(register) else { return };
        if let Some(at) = self.values.get_mut(index) {
            *at = addr;
            self.stored |= 1 << index;
        }
    }

    /// What a register holds; `None` for one that is not kept, or cannot be read.
    #[inline]
    pub(super) fn get<M: Memory>(&self, machine: &Machine, register: u16, memory: &M) -> Option<usize> {
        let index = machine.index(register)?;
        let value = *self.values.get(index)?;
        if self.stored >> index & 1 == 0 { Some(value) } else { memory.read_usize(value).ok() }
    }
}

/// An architecture.
#[derive(Debug)]
pub struct Machine {
    /// The number of the stack pointer.
    pub stack_pointer: u16,
    /// The number of the return address.
    pub return_address: u16,
    /// The names of registers, by their numbers from 0 on.
    pub names: &'static [&'static str],
    /// The name of the register that has the return address, where that has a number of its own.
    pub link: Option<&'static str>,
    /// The registers that functions keep for their callers, the return address included: at most
    /// [`MOST_SAVED`](super::rules::MOST_SAVED).
    pub(crate) saved: &'static [u16],
    /// How frames are chained, where that is so by convention.
    pub(crate) chain: Option<Chain>,
    /// The bits of an address: the others may hold a signature.
    pub(crate) address_mask: usize,
    pub(crate) vendor: Vendor,
    /// How a signal's frame is known that nothing describes.
    pub(crate) signal: Option<Signal>,
}

/// A register that leads to two words: what it was in the caller, and the return address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// The register.
    pub(crate) pointer: u16,
}

/// The code that ends a signal's handler, and what lies above the stack pointer there.
#[derive(Debug)]
pub(crate) struct Signal {
    pub(crate) code: &'static [u8],
    /// The interrupted program counter.
    pub(crate) pc: usize,
    /// Registers and where they are.
    pub(crate) registers: &'static [(u16, usize)],
}

impl Machine {
    /// Where a register is kept.
    pub(super) fn index(&self, register: u16) -> Option<usize> {
        match usize::from(register) {
            low @ 0..32 => Some(low),
            _ if register == self.return_address => Some(32),
            _ => None,
        }
    }

    /// The register that is kept there.
    pub(super) fn register(&self, index: usize) -> u16 {
        if index == 32 { self.return_address.max(32) } else { index as u16 }
    }

    /// What a signal has interrupted, if the frame is that of one's handler, returning.
    pub(super) fn interrupted<M: Memory>(&self, registers: &Registers, memory: &M) -> Option<Registers> {
        let signal = self.signal.as_ref()?;
        let mut code = [0; 16];
        let code = code.get_mut(..signal.code.len())?;
        memory.read(registers.pc, code).ok()?;
        if code != signal.code {
            return None;
        }
        let stack = registers.get(self, self.stack_pointer, memory)?;
        let word = |offset: usize| memory.read_usize(stack.wrapping_add(offset)).ok();
        let mut interrupted = Registers { pc: word(signal.pc)?, ..*registers };
        for (register, offset) in signal.registers {
            interrupted.set(self, *register, word(*offset)?);
        }
        Some(interrupted)
    }
}
