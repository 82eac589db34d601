//! The saved registers: the beginning of Linux's `struct pt_regs`, bit for bit.
//!
//! A kernel's trap frame that begins like that may be passed in place. A signal frame has the same at
//! `uc_mcontext.__gregs`, except for [`PtRegs::status`]. Plain data, usable anywhere.

use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::Regs;

/// The link register (psABI 1.0, Integer Register Convention).
pub const RA: u8 = 1;
/// The stack pointer.
pub const SP: u8 = 2;
/// A0, the first argument and the return value; A1 to A7 follow.
pub const A0: u8 = 10;

/// The registers of an interrupted context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PtRegs {
    /// The program counter.
    pub pc: u64,
    /// X1 to X31; X0 is always zero and has no place. [`PtRegs::x`] takes the register's number.
    pub x1_to_x31: [u64; 31],
    /// `sstatus` or `mstatus` as the trap saved it: privilege and interrupts. Nothing where there was no
    /// trap, and in a process.
    pub status: u64,
}

const _: () = {
    assert!(offset_of!(PtRegs, x1_to_x31) == 8);
    assert!(offset_of!(PtRegs, status) == 256);
    assert!(size_of::<PtRegs>() == 264);
};

impl PtRegs {
    /// The value of X`number`; X0 and what is no register read as zero.
    #[must_use]
    #[inline]
    pub const fn x(&self, number: u8) -> u64 {
        let index = number.wrapping_sub(1) as usize;
        if index < 31 { self.x1_to_x31[index] } else { 0 }
    }

    /// Sets X`number`; X0 is discarded.
    #[inline]
    pub const fn set_x(&mut self, number: u8, value: u64) {
        let index = number.wrapping_sub(1) as usize;
        if index < 31 {
            self.x1_to_x31[index] = value;
        }
    }
}

/// Register number 0 of tools is the program counter, as no tool asks for X0.
const PC: usize = 0;

/// The ABI's names, as in the kernel's `regoffset_table`, and the architecture's.
static NAMES: [(&str, usize); 65] = [
    ("epc", PC),
    ("ra", 1),
    ("sp", 2),
    ("gp", 3),
    ("tp", 4),
    ("t0", 5),
    ("t1", 6),
    ("t2", 7),
    ("s0", 8),
    ("s1", 9),
    ("a0", 10),
    ("a1", 11),
    ("a2", 12),
    ("a3", 13),
    ("a4", 14),
    ("a5", 15),
    ("a6", 16),
    ("a7", 17),
    ("s2", 18),
    ("s3", 19),
    ("s4", 20),
    ("s5", 21),
    ("s6", 22),
    ("s7", 23),
    ("s8", 24),
    ("s9", 25),
    ("s10", 26),
    ("s11", 27),
    ("t3", 28),
    ("t4", 29),
    ("t5", 30),
    ("t6", 31),
    ("pc", PC),
    ("fp", 8),
    ("x1", 1),
    ("x2", 2),
    ("x3", 3),
    ("x4", 4),
    ("x5", 5),
    ("x6", 6),
    ("x7", 7),
    ("x8", 8),
    ("x9", 9),
    ("x10", 10),
    ("x11", 11),
    ("x12", 12),
    ("x13", 13),
    ("x14", 14),
    ("x15", 15),
    ("x16", 16),
    ("x17", 17),
    ("x18", 18),
    ("x19", 19),
    ("x20", 20),
    ("x21", 21),
    ("x22", 22),
    ("x23", 23),
    ("x24", 24),
    ("x25", 25),
    ("x26", 26),
    ("x27", 27),
    ("x28", 28),
    ("x29", 29),
    ("x30", 30),
    ("x31", 31),
];

impl Regs for PtRegs {
    #[inline]
    fn pc(&self) -> CodeAddr {
        CodeAddr::new(self.pc as usize)
    }

    #[inline]
    fn set_pc(&mut self, pc: CodeAddr) {
        self.pc = pc.as_usize() as u64;
    }

    #[inline]
    fn sp(&self) -> usize {
        self.x(SP) as usize
    }

    fn names() -> &'static [(&'static str, usize)] {
        &NAMES
    }

    fn register(&self, index: usize) -> Option<usize> {
        match index {
            PC => Some(self.pc as usize),
            _ => self.x1_to_x31.get(index - 1).map(|value| *value as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered() -> PtRegs {
        PtRegs { pc: 100, x1_to_x31: core::array::from_fn(|index| 101 + index as u64), status: 132 }
    }

    #[test]
    fn every_name_reads_the_register_of_its_number() {
        for (name, index) in PtRegs::names() {
            assert_eq!(numbered().register(*index), Some(100 + index), "{name}");
        }
        for number in 1..32 {
            let name = std::format!("x{number}");
            assert!(PtRegs::names().contains(&(&*name, number)), "{name}");
        }
        assert_eq!(numbered().register(32), None);
    }

    #[test]
    fn x0_is_zero_whatever_is_written() {
        let mut regs = numbered();
        regs.set_x(0, 7);
        assert_eq!((regs, regs.x(0)), (numbered(), 0));
        regs.set_x(31, 7);
        assert_eq!((regs.x(31), regs.x(30), regs.x(1)), (7, 130, 101));
        assert_eq!((regs.sp(), regs.pc()), (102, CodeAddr::new(100)));
    }
}
