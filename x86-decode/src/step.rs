//! Hardware single-step: the trap flag. Source: SDM volume 3, 17.3.1.4.
//!
//! PUSHF and POPF, which would show or change the flag, are simulated. Pure, on the hit path.

use crate::registers::{FlagBits, Registers};

/// See [`SingleStep::begin`](probe_core::arch::SingleStep::begin).
pub fn begin<R: Registers>(regs: &mut R) -> u32 {
    let flags = regs.flags();
    regs.set_flags(flags | FlagBits::TF);
    (flags & FlagBits::TF) as u32
}

/// See [`SingleStep::end`](probe_core::arch::SingleStep::end).
pub fn end<R: Registers>(regs: &mut R, kept: u32) {
    regs.set_flags(regs.flags() & !FlagBits::TF | u64::from(kept));
}
