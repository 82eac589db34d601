//! The saved registers: Linux's `struct pt_regs`, bit for bit.
//!
//! A kernel's trap frame that has this layout may be passed in place; a signal frame has the same registers
//! in its `sigcontext`, from `arm_r0` to `arm_cpsr`. Plain data, usable anywhere.

use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::Regs;

/// The stack pointer (AAPCS32 6.1.1).
pub const SP: u8 = 13;
/// The link register.
pub const LR: u8 = 14;
/// The program counter, as the number of an operand.
pub const PC: u8 = 15;

/// CPSR: the T32 instruction set (B1.3.3).
pub const CPSR_T: u32 = 1 << 5;
/// CPSR: the carry flag.
pub const CPSR_C: u32 = 1 << 29;
/// CPSR: the four flags N, Z, C and V.
pub const CPSR_NZCV: u32 = 0xf << 28;
/// CPSR: what a program sees and changes: the flags, Q and GE (A2.4), and the set and the state of IT.
pub(crate) const CPSR_APPLICATION: u32 = 0xf80f_0000 | CPSR_T | CPSR_IT;
/// CPSR: the state of an IT block, in two pieces.
const CPSR_IT: u32 = 0x0600_fc00;

/// The registers of an interrupted context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PtRegs {
    /// R0 to R14.
    pub r: [u32; 15],
    /// The program counter; the instruction set is in [`PtRegs::cpsr`].
    pub pc: u32,
    /// The flags, the instruction set, the state of an IT block, the mode.
    pub cpsr: u32,
    /// Linux's `ORIG_r0`: R0 at a system call.
    pub orig_r0: u32,
}

const _: () = {
    assert!(offset_of!(PtRegs, pc) == 60);
    assert!(offset_of!(PtRegs, cpsr) == 64);
    assert!(size_of::<PtRegs>() == 72);
};

impl PtRegs {
    /// The value of R`number`; what is none of R0 to R14 reads as zero.
    #[must_use]
    #[inline]
    pub const fn r(&self, number: u8) -> u32 {
        if (number as usize) < self.r.len() { self.r[number as usize] } else { 0 }
    }

    /// Sets R`number`, where that is one of R0 to R14.
    #[inline]
    pub const fn set_r(&mut self, number: u8, value: u32) {
        if (number as usize) < self.r.len() {
            self.r[number as usize] = value;
        }
    }

    /// The state of the IT block, zero outside of one (A2.5.2): a condition and the mask of what follows.
    #[must_use]
    #[inline]
    pub const fn it_state(&self) -> u8 {
        (self.cpsr >> 25 & 0b11 | self.cpsr >> 8 & 0b1111_1100) as u8
    }

    /// Sets the state of the IT block.
    #[inline]
    pub const fn set_it_state(&mut self, state: u8) {
        let state = state as u32;
        self.cpsr = self.cpsr & !CPSR_IT | (state & 0b11) << 25 | (state & 0b1111_1100) << 8;
    }

    /// Moves the state of the IT block on by one instruction (A2.5.2, ITAdvance).
    #[inline]
    pub(crate) const fn advance_it(&mut self) {
        let state = self.it_state();
        let next = if state & 0b111 == 0 { 0 } else { state & 0b1110_0000 | state << 1 & 0b1_1111 };
        self.set_it_state(next);
    }
}

/// Linux's names (`regoffset_table`), those of the calling convention, and the architecture's.
static NAMES: [(&str, usize); 23] = [
    ("r0", 0),
    ("r1", 1),
    ("r2", 2),
    ("r3", 3),
    ("r4", 4),
    ("r5", 5),
    ("r6", 6),
    ("r7", 7),
    ("r8", 8),
    ("r9", 9),
    ("r10", 10),
    ("fp", 11),
    ("ip", 12),
    ("sp", 13),
    ("lr", 14),
    ("pc", 15),
    ("cpsr", 16),
    ("ORIG_r0", 17),
    ("r11", 11),
    ("r12", 12),
    ("r13", 13),
    ("r14", 14),
    ("r15", 15),
];

impl Regs for PtRegs {
    #[inline]
    fn pc(&self) -> CodeAddr {
        CodeAddr::new(self.pc as usize | (self.cpsr & CPSR_T != 0) as usize)
    }

    #[inline]
    fn set_pc(&mut self, pc: CodeAddr) {
        let at = pc.as_usize() as u32;
        self.pc = at & !1;
        self.cpsr = self.cpsr & !CPSR_T | (at & 1) << 5;
    }

    #[inline]
    fn sp(&self) -> usize {
        self.r(SP) as usize
    }

    fn names() -> &'static [(&'static str, usize)] {
        &NAMES
    }

    fn register(&self, index: usize) -> Option<usize> {
        let value = match index {
            0..=14 => self.r.get(index).copied()?,
            15 => self.pc,
            16 => self.cpsr,
            17 => self.orig_r0,
            _ => return None,
        };
        Some(value as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered() -> PtRegs {
        PtRegs { r: core::array::from_fn(|index| 100 + index as u32), pc: 115, cpsr: 116, orig_r0: 117 }
    }

    #[test]
    fn every_name_reads_the_register_of_its_number() {
        for (name, index) in PtRegs::names() {
            assert_eq!(numbered().register(*index), Some(100 + index), "{name}");
        }
        for number in 0..16 {
            let name = std::format!("r{number}");
            assert!(PtRegs::names().contains(&(&*name, number)), "{name}");
        }
        assert_eq!(numbered().register(18), None);
        assert_eq!(numbered().sp(), 113);
    }

    #[test]
    fn the_program_counter_says_the_instruction_set() {
        let mut regs = PtRegs { cpsr: 0x6000_0010, ..PtRegs::default() };
        regs.set_pc(CodeAddr::new(0x8001));
        assert_eq!((regs.pc, regs.cpsr, regs.pc()), (0x8000, 0x6000_0030, CodeAddr::new(0x8001)));
        regs.set_pc(CodeAddr::new(0x9000));
        assert_eq!((regs.pc, regs.cpsr, regs.pc()), (0x9000, 0x6000_0010, CodeAddr::new(0x9000)));
    }

    /// A2.5.2, table A2-1: the state of each instruction of a block.
    #[test]
    fn a_block_of_four_ends_after_four() {
        let mut regs = PtRegs { cpsr: 0x4000_0030, ..PtRegs::default() };
        // ITETE EQ
        regs.set_it_state(0b0000_1011);
        assert_eq!(regs.cpsr, 0x4000_0030 | 0b11 << 25 | 0b10 << 10);
        let mut states = std::vec::Vec::new();
        while regs.it_state() != 0 {
            states.push(regs.it_state());
            regs.advance_it();
        }
        assert_eq!(states, [0b0000_1011, 0b0001_0110, 0b0000_1100, 0b0001_1000]);
        assert_eq!(regs.cpsr, 0x4000_0030);
    }

    #[test]
    fn what_is_no_register_is_zero_whatever_is_written() {
        let mut regs = numbered();
        regs.set_r(PC, 7);
        regs.set_r(16, 7);
        assert_eq!((regs, regs.r(PC)), (numbered(), 0));
        regs.set_r(LR, 7);
        assert_eq!((regs.r(LR), regs.r(SP)), (7, 113));
    }
}
