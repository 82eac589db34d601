//! The saved registers of an interrupted context: [`PtRegs`], laid out as Linux's `struct pt_regs` of ppc32.
//!
//! The same layout serves `mc_gregs` of a signal frame and ptrace. Pure.

use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::Regs;
use probe_ppc_decode::Registers;

/// General-purpose register of the stack pointer.
pub(crate) const SP: usize = 1;

/// `MSR[EE]`: external interrupts are on. Power ISA 2.07, Book III-E, "Machine State Register".
pub const MSR_EE: u32 = 1 << 15;
/// `MSR[SE]`: trap after one instruction, on classic processors.
pub const MSR_SE: u32 = 1 << 10;
/// `MSR[DE]`: debug interrupts are on, on Book E; branch tracing on classic processors.
pub const MSR_DE: u32 = 1 << 9;

/// The registers of an interrupted context (Linux: `struct pt_regs`; the first 44 words of `mc_gregs`).
///
/// `mq`, `trap`, `dar`, `dsisr` and `result` are carried along and never looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PtRegs {
    /// r0 to r31. r1 is the stack pointer, r2 the thread pointer, r13 the small data area's.
    pub gpr: [u32; 32],
    /// Next instruction address: the program counter.
    pub nip: u32,
    /// Machine state register.
    pub msr: u32,
    /// r3 at the entry of a system call.
    pub orig_gpr3: u32,
    /// Count register.
    pub ctr: u32,
    /// Link register.
    pub link: u32,
    /// Fixed-point exception register.
    pub xer: u32,
    /// Condition register.
    pub ccr: u32,
    /// The multiply-quotient register of the 601; nothing elsewhere.
    pub mq: u32,
    /// The vector of the trap.
    pub trap: u32,
    /// Data address register; DEAR on Book E.
    pub dar: u32,
    /// Data storage interrupt status register; ESR on Book E.
    pub dsisr: u32,
    /// Result of a system call.
    pub result: u32,
}

/// The number of words in [`PtRegs`].
pub const WORDS: usize = size_of::<PtRegs>() / 4;

const _: () = {
    assert!(WORDS == 44);
    assert!(offset_of!(PtRegs, nip) == 32 * 4);
    assert!(offset_of!(PtRegs, msr) == 33 * 4);
    assert!(offset_of!(PtRegs, ctr) == 35 * 4);
    assert!(offset_of!(PtRegs, link) == 36 * 4);
    assert!(offset_of!(PtRegs, xer) == 37 * 4);
    assert!(offset_of!(PtRegs, ccr) == 38 * 4);
    assert!(offset_of!(PtRegs, result) == 43 * 4);
};

/// As the shared simulation sees them.
impl Registers for PtRegs {
    const OF_THE_SLOT: u64 = (MSR_EE | MSR_SE | MSR_DE) as u64;

    #[inline]
    fn gpr(&self, index: usize) -> u64 {
        self.gpr[index].into()
    }

    #[inline]
    fn set_gpr(&mut self, index: usize, value: u64) {
        self.gpr[index] = value as u32;
    }

    #[inline]
    fn nip(&self) -> u64 {
        self.nip.into()
    }

    #[inline]
    fn set_nip(&mut self, value: u64) {
        self.nip = value as u32;
    }

    #[inline]
    fn link(&self) -> u64 {
        self.link.into()
    }

    #[inline]
    fn set_link(&mut self, value: u64) {
        self.link = value as u32;
    }

    #[inline]
    fn ctr(&self) -> u64 {
        self.ctr.into()
    }

    #[inline]
    fn set_ctr(&mut self, value: u64) {
        self.ctr = value as u32;
    }

    #[inline]
    fn xer(&self) -> u64 {
        self.xer.into()
    }

    #[inline]
    fn ccr(&self) -> u64 {
        self.ccr.into()
    }

    #[inline]
    fn msr(&self) -> u64 {
        self.msr.into()
    }

    #[inline]
    fn effective(&self, address: u64) -> u64 {
        address & 0xffff_ffff
    }
}

impl Regs for PtRegs {
    fn pc(&self) -> CodeAddr {
        CodeAddr::new(self.nip as usize)
    }

    fn set_pc(&mut self, pc: CodeAddr) {
        self.nip = pc.as_usize() as u32;
    }

    fn sp(&self) -> usize {
        self.gpr[SP] as usize
    }

    fn names() -> &'static [(&'static str, usize)] {
        NAMES
    }

    fn register(&self, index: usize) -> Option<usize> {
        let value = match index {
            0..=31 => self.gpr[index],
            32 => self.nip,
            33 => self.msr,
            34 => self.orig_gpr3,
            35 => self.ctr,
            36 => self.link,
            37 => self.xer,
            38 => self.ccr,
            39 => self.mq,
            40 => self.trap,
            41 => self.dar,
            42 => self.dsisr,
            43 => self.result,
            _ => return None,
        };
        Some(value as usize)
    }
}

/// Linux's names (`gpr3`, `link`, `ccr`) and the assembler's (`r3`, `lr`, `cr`).
#[rustfmt::skip]
static NAMES: &[(&str, usize)] = &[
    ("r0", 0), ("r1", 1), ("r2", 2), ("r3", 3), ("r4", 4), ("r5", 5), ("r6", 6), ("r7", 7),
    ("r8", 8), ("r9", 9), ("r10", 10), ("r11", 11), ("r12", 12), ("r13", 13), ("r14", 14), ("r15", 15),
    ("r16", 16), ("r17", 17), ("r18", 18), ("r19", 19), ("r20", 20), ("r21", 21), ("r22", 22), ("r23", 23),
    ("r24", 24), ("r25", 25), ("r26", 26), ("r27", 27), ("r28", 28), ("r29", 29), ("r30", 30), ("r31", 31),
    ("gpr0", 0), ("gpr1", 1), ("gpr2", 2), ("gpr3", 3), ("gpr4", 4), ("gpr5", 5), ("gpr6", 6), ("gpr7", 7),
    ("gpr8", 8), ("gpr9", 9), ("gpr10", 10), ("gpr11", 11), ("gpr12", 12), ("gpr13", 13), ("gpr14", 14),
    ("gpr15", 15), ("gpr16", 16), ("gpr17", 17), ("gpr18", 18), ("gpr19", 19), ("gpr20", 20), ("gpr21", 21),
    ("gpr22", 22), ("gpr23", 23), ("gpr24", 24), ("gpr25", 25), ("gpr26", 26), ("gpr27", 27), ("gpr28", 28),
    ("gpr29", 29), ("gpr30", 30), ("gpr31", 31),
    ("sp", SP),
    ("nip", 32), ("pc", 32), ("msr", 33), ("orig_gpr3", 34), ("ctr", 35), ("link", 36), ("lr", 36),
    ("xer", 37), ("ccr", 38), ("cr", 38), ("mq", 39), ("trap", 40), ("dar", 41), ("dsisr", 42),
    ("result", 43),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_its_register_and_every_register_has_a_name() {
        let mut regs = PtRegs::default();
        for (n, gpr) in regs.gpr.iter_mut().enumerate() {
            *gpr = 0x100 + n as u32;
        }
        (regs.nip, regs.msr, regs.orig_gpr3, regs.ctr) = (0x120, 0x121, 0x122, 0x123);
        (regs.link, regs.xer, regs.ccr, regs.mq) = (0x124, 0x125, 0x126, 0x127);
        (regs.trap, regs.dar, regs.dsisr, regs.result) = (0x128, 0x129, 0x12a, 0x12b);
        for &(name, index) in PtRegs::names() {
            assert_eq!(regs.register(index), Some(0x100 + index), "{name}");
        }
        for index in 0..WORDS {
            assert!(NAMES.iter().any(|&(_, n)| n == index), "register {index} has no name");
        }
        assert_eq!(regs.register(WORDS), None);
    }

    #[test]
    fn pc_and_sp_are_nip_and_r1() {
        let mut regs = PtRegs::default();
        regs.set_pc(CodeAddr::new(0x1234_5678));
        regs.gpr[1] = 0x7fff_0000;
        assert_eq!((regs.nip, regs.pc(), regs.sp()), (0x1234_5678, CodeAddr::new(0x1234_5678), 0x7fff_0000));
    }
}
