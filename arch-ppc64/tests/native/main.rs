//! Execution on the architecture itself (QEMU user mode, or hardware): every class of instruction leaves the
//! same registers, memory and next address probed and unprobed; trampolines and publication do what they
//! promise.
//!
//! Prefixed instructions need a POWER10 (`QEMU_CPU=power10`); elsewhere they fault, probed and unprobed
//! alike.
#![cfg(target_arch = "powerpc64")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "signal frames are copied part by part under one promise"
)]

mod calls;
#[path = "../../../tests/transparency.rs"]
mod coverage;
mod machine;
mod publish;
mod random;
#[path = "../../../tests/native/mod.rs"]
mod shared;
mod state;
mod transparency;
mod unwinding;

/// What the shared part is told of the architecture.
mod own {
    pub(crate) use crate::calls::handler;
    pub(crate) use crate::unwinding::{call_through_stub, eh_frame};
    pub(crate) use probe_arch_ppc64::Native as Backend;
    pub(crate) const BACKEND: Backend = Backend::NEW;
}
