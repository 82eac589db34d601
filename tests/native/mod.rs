//! What the native tests of several backends share: a machine for one instruction, its states and their
//! comparison, return stubs, unwinding through them.
//!
//! Included by `arch-*/tests/native/main.rs`, which says in `own` what is the architecture's: `Backend`, its
//! type, and `BACKEND`, its value; `eh_frame` of `probe_unwind`; `handler`, what return stubs lead to;
//! `call_through_stub`.
#![allow(dead_code, reason = "each backend's tests use a part of it")]

pub(crate) mod machine;
pub(crate) mod states;
pub(crate) mod stubs;
pub(crate) mod transparency;
mod unwinding;
