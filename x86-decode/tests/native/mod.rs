//! Running code on this processor from chosen states.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod arena;
#[allow(dead_code, reason = "not every test generates")]
pub(crate) mod generate;
pub(crate) mod machine;
mod registers;
#[allow(dead_code, reason = "as above")]
pub(crate) mod sandbox;
pub(crate) mod state;

pub(crate) use registers::{Backend, CONTEXT_AT, Context, Native, StepBack, gregs_of, regs_of};
