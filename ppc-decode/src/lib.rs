//! What the ppc64 and ppc32 backends of probe-core share: the Power ISA, whatever the word size.
//!
//! Words become a [`Plan`] or a refusal ([`mod@decode`], by the tables of [`insn`]); the plan is executed on
//! the registers ([`mod@simulate`]) or runs in a slot ([`slot`]). [`call`] walks back chains, [`patch`] says
//! why a store is safe. Two traits keep the backends apart: [`Mode`] (word size, byte order, reasons: what
//! the decoder must know) and [`Registers`] (what the simulation must know). Saved registers, the ABI,
//! detours and assembly are the backends'.
//!
//! Pure, `no_std`, no heap. Manual: Power ISA, version 3.1C, and 2.07 for Book III-E.
#![no_std]
#![forbid(unsafe_code)]

pub mod call;
pub mod decode;
pub mod insn;
mod mode;
pub mod patch;
mod reason;
mod registers;
pub mod simulate;
pub mod slot;

pub use decode::Plan;
pub use mode::Mode;
pub use reason::Reason;
pub use registers::Registers;
