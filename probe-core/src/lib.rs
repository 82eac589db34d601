//! Linux-style kprobes, jprobes and kretprobes for any kernel and any process: the architecture-neutral core.
#![no_std]

extern crate alloc;

mod addr;
pub mod arch;
mod context;
pub mod error;
pub mod host;

pub use addr::CodeAddr;
pub use context::{Context, Task};
pub use error::{Errno, Refusal, TextError};
