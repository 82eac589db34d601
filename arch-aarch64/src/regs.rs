//! The saved registers: Linux's `struct user_pt_regs`, bit for bit.
//!
//! [`PtRegs`] is what a kernel's exception entry saves and what lies in a Linux signal frame at
//! `uc_mcontext.regs`; both may be passed in place. Plain data, usable anywhere.

use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::Regs;

/// PSTATE.N, as saved in an SPSR (Arm ARM DDI 0487J.a, C5.2.19).
pub const PSTATE_N: u64 = 1 << 31;
/// PSTATE.Z.
pub const PSTATE_Z: u64 = 1 << 30;
/// PSTATE.C.
pub const PSTATE_C: u64 = 1 << 29;
/// PSTATE.V.
pub const PSTATE_V: u64 = 1 << 28;
/// The four condition flags.
pub const PSTATE_NZCV: u64 = PSTATE_N | PSTATE_Z | PSTATE_C | PSTATE_V;
/// PSTATE.BTYPE: what kind of branch led here (FEAT_BTI, DDI 0487J.a D8.4.4). 0 after anything but an
/// indirect branch.
pub const PSTATE_BTYPE: u64 = 0b11 << 10;
/// PSTATE.BTYPE after `br x16`, `br x17`, or any `br` from a page that is not guarded.
pub const BTYPE_JUMP: u64 = 0b01 << 10;
/// PSTATE.BTYPE after `blr`.
pub const BTYPE_CALL: u64 = 0b10 << 10;

/// PSTATE.SS: execute one instruction, then trap (DDI 0487J.a D2.12, software step).
pub const PSTATE_SS: u64 = 1 << 21;
/// PSTATE.D: debug exceptions are masked.
pub const PSTATE_D: u64 = 1 << 9;

/// The registers of an interrupted context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PtRegs {
    /// X0 to X30 (X29 is the frame pointer, X30 the link register).
    pub x: [u64; 31],
    /// The stack pointer.
    pub sp: u64,
    /// The program counter.
    pub pc: u64,
    /// PSTATE in the layout of an SPSR.
    pub pstate: u64,
}

const _: () = {
    assert!(offset_of!(PtRegs, sp) == 248);
    assert!(offset_of!(PtRegs, pc) == 256);
    assert!(offset_of!(PtRegs, pstate) == 264);
    assert!(size_of::<PtRegs>() == 272);
};

impl PtRegs {
    /// The value of X`index`, where 31 reads as zero (XZR).
    pub(crate) const fn x_or_zero(&self, index: u8) -> u64 {
        if index < 31 { self.x[index as usize] } else { 0 }
    }

    /// Sets X`index`; 31 (XZR) is discarded.
    pub(crate) const fn set_x(&mut self, index: u8, value: u64) {
        if index < 31 {
            self.x[index as usize] = value;
        }
    }

    /// Sets PSTATE.BTYPE to `btype` (one of the `BTYPE_` constants or 0).
    pub(crate) const fn set_btype(&mut self, btype: u64) {
        self.pstate = self.pstate & !PSTATE_BTYPE | btype;
    }

    /// Sets all of PSTATE but the flags and BTYPE to what `pstate` has.
    pub(crate) const fn keep_mode(&mut self, pstate: u64) {
        const OWN: u64 = PSTATE_NZCV | PSTATE_BTYPE;
        self.pstate = self.pstate & OWN | pstate & !OWN;
    }

    /// Whether a condition holds (DDI 0487J.a C1.2.4, `ConditionHolds`).
    pub(crate) const fn condition_holds(&self, cond: u8) -> bool {
        let (n, z) = (self.pstate & PSTATE_N != 0, self.pstate & PSTATE_Z != 0);
        let (c, v) = (self.pstate & PSTATE_C != 0, self.pstate & PSTATE_V != 0);
        let base = match cond >> 1 {
            0b000 => z,
            0b001 => c,
            0b010 => n,
            0b011 => v,
            0b100 => c && !z,
            0b101 => n == v,
            0b110 => n == v && !z,
            _ => return true,
        };
        base != (cond & 1 != 0)
    }
}

/// Register numbers: 0 to 30 are X0 to X30.
const SP: usize = 31;
const PC: usize = 32;
const PSTATE: usize = 33;

/// As in the kernel's `regoffset_table`, and the ABI's names.
///
/// There are no `w` names: a number stands for a whole register, and `w0` would read 64 bits.
static NAMES: [(&str, usize); 38] = [
    ("x0", 0),
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
    ("sp", SP),
    ("pc", PC),
    ("pstate", PSTATE),
    ("ip0", 16),
    ("ip1", 17),
    ("fp", 29),
    ("lr", 30),
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
        self.sp as usize
    }

    fn names() -> &'static [(&'static str, usize)] {
        &NAMES
    }

    fn register(&self, index: usize) -> Option<usize> {
        let value = match index {
            SP => self.sp,
            PC => self.pc,
            PSTATE => self.pstate,
            _ => *self.x.get(index)?,
        };
        Some(value as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_the_register_of_its_number() {
        let mut regs = PtRegs { sp: 131, pc: 132, pstate: 133, ..PtRegs::default() };
        for (index, x) in regs.x.iter_mut().enumerate() {
            *x = 100 + index as u64;
        }
        for (name, index) in PtRegs::names() {
            assert_eq!(regs.register(*index), Some(100 + index), "{name}");
        }
        assert_eq!(regs.register(34), None);
        assert_eq!(PtRegs::names().iter().find(|n| n.0 == "lr").map(|n| n.1), Some(30));
    }

    /// The table of DDI 0487J.a C1.2.4.
    #[test]
    fn conditions_hold_as_the_manual_says() {
        for (cond, nzcv) in (0..16u8).flat_map(|cond| (0..16u64).map(move |nzcv| (cond, nzcv))) {
            let [v, c, z, n] = [0, 1, 2, 3].map(|bit| nzcv >> bit & 1 == 1);
            let want = match cond {
                0b0000 => z,
                0b0001 => !z,
                0b0010 => c,
                0b0011 => !c,
                0b0100 => n,
                0b0101 => !n,
                0b0110 => v,
                0b0111 => !v,
                0b1000 => c && !z,
                0b1001 => !c || z,
                0b1010 => n == v,
                0b1011 => n != v,
                0b1100 => !z && n == v,
                0b1101 => z || n != v,
                _ => true,
            };
            let regs = PtRegs { pstate: nzcv << 28, ..PtRegs::default() };
            assert_eq!(regs.condition_holds(cond), want, "cond {cond:#06b} nzcv {nzcv:#06b}");
        }
    }

    #[test]
    fn a_resumed_context_has_its_own_flags_and_the_traps_mode() {
        let mut regs = PtRegs { pstate: PSTATE_Z | BTYPE_CALL | PSTATE_SS, ..PtRegs::default() };
        regs.keep_mode(PSTATE_N | BTYPE_JUMP | PSTATE_D | 5);
        assert_eq!(regs.pstate, PSTATE_Z | BTYPE_CALL | PSTATE_D | 5);
    }
}
