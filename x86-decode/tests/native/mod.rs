//! One instruction on this processor, bare and probed.

pub(crate) mod arena;
pub(crate) mod machine;
mod registers;
pub(crate) mod state;

pub(crate) use registers::{Backend, CONTEXT_AT, Context, Native, StepBack, gregs_of, regs_of};
