//! The x86_64 backend of probe-core.
//!
//! A façade on [`probe_x86_decode`], which holds everything that the two x86 backends share. In reading
//! order: [`regs`] the saved registers · [`insn`] named encodings · `decode` bytes to a plan · `simulate`
//! effects on registers · `slot` out-of-line copies · `call` the calling convention · `patch` why nothing is
//! to be done · `detour` what a jump leads to · [`watch`] data breakpoints · `asm` trampolines (only on this
//! architecture).
//!
//! Everything but `asm` is pure and may be called in a trap handler. Simulated calls and returns do not keep
//! CET's shadow stack: do not probe tasks that have one.
#![no_std]

mod call;
mod decode;
mod detour;
pub mod insn;
mod patch;
pub mod regs;
mod simulate;
mod slot;
pub mod watch;

#[cfg(target_arch = "x86_64")]
mod asm;

use probe_x86_decode::LongMode;

pub use regs::Regs;

/// The x86-64 backend, in 64-bit mode.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

probe_x86_decode::backend!(
    X86_64,
    name: "x86_64",
    mode: LongMode,
    registers: Regs,
    // Half of what a displacement spans: what an instruction addresses within 1 GiB stays in reach of its
    // slot.
    slot reach: 1 << 30
);
