//! What the x86-64 and i386 backends of probe-core share: everything but registers, ABI and assembly.
//!
//! A place's bytes become an [`Insn`] (prefixes, opcode, ModRM, length: [`insn`], [`length`]), the `Insn`
//! becomes a [`Plan`] or a refusal ([`mod@decode`]), and the plan is either executed on the registers
//! ([`mod@simulate`]) or built into a slot ([`slot`]). Return stubs and stack arguments are in [`call`]. Two
//! types keep the modes apart: [`Mode`] (what the decoder must know) and [`Registers`] (what the simulation
//! must know); the backends implement the latter for their own register files.
//!
//! Pure, `no_std`, no heap, and nothing here panics: all of it may be called in a trap handler. The lengths
//! and the validity of instructions come from yaxpeax-x86, held against this crate's own length rule (see
//! [`length`]).
//!
//! Features: `long-mode` and `protected-mode` switch on [`LongMode`] and [`ProtectedMode`].
//!
//! Manuals: Intel SDM (325383-083), AMD APM (24594, revision 3.36).
#![no_std]

mod backend;
pub mod call;
pub mod decode;
pub mod detour;
pub mod fpu;
pub mod insn;
pub mod length;
mod mode;
mod plan;
pub mod refusal;
mod registers;
pub mod simulate;
pub mod slot;
pub mod step;
pub mod watch;

pub use decode::decode;
pub use insn::Insn;
pub use length::insn_len;
#[cfg(feature = "long-mode")]
pub use mode::LongMode;
pub use mode::Mode;
#[cfg(feature = "protected-mode")]
pub use mode::ProtectedMode;
pub use plan::{AddressSize, Condition, Effect, LoopKind, MemoryOperand, Plan, Source, StackEffect, Width};
pub use registers::{FlagBits, Registers, StepState};
pub use simulate::simulate;

/// The breakpoint instruction, `int3`.
pub const BREAKPOINT: &[u8] = &[0xcc];

/// The longest instruction, in bytes.
pub const MAX_INSN_LEN: usize = 15;

/// The size of a slot: an instruction, the word that it may grow by, a jump back, the core's word.
pub const SLOT_LEN: usize = 32;

/// Whether `bytes` start with a breakpoint, ours or somebody else's: `int3` in its one- and two-byte form.
#[must_use]
pub fn is_breakpoint(bytes: &[u8]) -> bool {
    matches!(bytes, [0xcc, ..] | [0xcd, 0x03, ..])
}
