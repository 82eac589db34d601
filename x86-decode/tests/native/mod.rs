//! Running code on this processor from chosen states.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod arena;
pub(crate) mod machine;
mod registers;
pub(crate) mod state;

pub(crate) use registers::{Backend, CONTEXT_AT, Context, Native, StepBack, gregs_of, regs_of};
