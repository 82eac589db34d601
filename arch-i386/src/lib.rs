//! The i386 backend of probe-core.
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

#[cfg(target_arch = "x86")]
mod asm;

use probe_x86_decode::ProtectedMode;

pub use regs::Regs;

/// The i386 backend: 32-bit protected mode with flat segments.
#[derive(Clone, Copy, Debug)]
pub struct I386;

probe_x86_decode::backend!(
    I386,
    name: "i386",
    mode: ProtectedMode,
    registers: Regs,
    // Displacements wrap around the whole address space.
    slot reach: 0xffff_ffff
);
