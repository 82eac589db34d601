#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod asm;
mod disasm;
pub mod insn;
mod load;
pub mod map;
mod memory;
mod run;
mod step;
mod sync;

pub use insn::Insn;
pub use load::{LoadError, MAX_INSNS, Program, Refusal};
pub use map::Map;
pub use memory::STACK_LEN;
pub use run::{COUNT, COUNT_KEY, Cause, Fault, Helpers, MAP_HELPERS, Machine, NoHelpers, RECORD, VALUE};
