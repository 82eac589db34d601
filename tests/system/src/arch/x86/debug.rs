//! The debug registers: vector 1, which is for single steps and data breakpoints.

use super::idt::{self, DEBUG};
use super::watch;
use crate::arch::Regs;
use crate::trap;
use crate::watch::Ranges;
use core::arch::asm;
use probe_core::arch::Regs as _;

/// Writes a debug register.
macro_rules! set {
    ($name:literal, $value:expr) => {{
        let value: usize = $value;
        // SAFETY: what they make the CPU trap on is handled below.
        unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
    }};
}

/// Reads a debug register.
macro_rules! get {
    ($name:literal) => {{
        let value: usize;
        // SAFETY: reading it has no effect.
        unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }};
}

/// Vector 1: what DR6 says, which the CPU does not clear. It traps after the instruction.
#[cold]
#[inline(never)]
pub fn trap(regs: &mut Regs) {
    const SINGLE_STEP: usize = 1 << 14;
    /// The bits that are always set.
    const NOTHING: usize = 0xffff_0ff0;
    // QEMU 7.2 makes two exceptions of a step that refers to watched memory, the second at this vector's
    // first instruction.
    if regs.pc().as_usize() == idt::stub(DEBUG.into()) {
        return;
    }
    let status = get!("dr6");
    set!("dr6", NOTHING);
    let watched = status & ((1 << watch::COUNT) - 1);
    if watched != 0 {
        // QEMU 7.2 tells of an old hit again, when a register of a lower number is hit next, until it is
        // armed anew.
        let control = get!("dr7");
        set!("dr7", watch::control([]));
        set!("dr7", control);
    }
    for index in (0..watch::COUNT).filter(|index| watched >> index & 1 != 0) {
        trap::watchpoint(regs, index);
    }
    if status & SINGLE_STEP != 0 {
        trap::step(regs, DEBUG.into());
    } else if watched == 0 {
        trap::fault(regs, DEBUG.into(), regs.pc().as_usize());
    }
}

/// Makes this CPU watch `ranges`.
pub fn load(ranges: &Ranges) {
    // Off while addresses change.
    set!("dr7", watch::control([]));
    let addr = |index: usize| ranges[index].map_or(0, |range| range.addr);
    set!("dr0", addr(0));
    set!("dr1", addr(1));
    set!("dr2", addr(2));
    set!("dr3", addr(3));
    set!("dr7", watch::control(ranges.iter().map(Option::as_ref)));
}
