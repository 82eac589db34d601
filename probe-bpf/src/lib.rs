#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod asm;
mod disasm;
mod fault;
mod helpers;
pub mod insn;
mod load;
pub mod map;
mod memory;
mod run;
mod step;
mod sync;

pub use fault::{Cause, Fault};
pub use helpers::{COUNT, COUNT_KEY, Helpers, MAP_HELPERS, NoHelpers, RECORD, RECORD_KEY, VALUE};
pub use insn::Insn;
pub use load::{LoadError, MAX_INSNS, Program, Refusal};
pub use map::Map;
pub use memory::STACK_LEN;
pub use run::Machine;
