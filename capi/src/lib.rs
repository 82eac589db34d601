//! The C face: `register_kprobe` and its family under the names that kernel people know, over probe-core.
//!
//! C sees `include/probe.h`, generated from this crate. Errors are negative errno values; the field `reason`
//! of the probe holds the stable code beside it (REG_9). One static library per architecture and kind of
//! host:
//!
//! * with the feature `process` (the default) for a program: `cargo build --release -p probe-c`;
//! * without it for a kernel, which provides a table of functions (`kernel`): `cargo build --profile kernel
//!   -p probe-c --no-default-features --target x86_64-unknown-none`.
//!
//! In the order of reading: [`types`] the structures · [`register`] registering, removing, enabling ·
//! [`regs`] the saved registers · [`listing`] listings, the switch, counters, explanations · [`jumps`] jumps
//! instead of breakpoints · [`stopping`] all probes stop · [`testing`] what can be tested of a host · the
//! host, `kernel` or `process`.
//!
//! The functions for registering and removing take a lock and allocate: never call them in a handler (they
//! answer `-EBUSY` there). The rules for handlers in probe-core's documentation hold for handlers in C, too.
#![cfg_attr(not(feature = "process"), no_std)]
// The structures have the names that they have in the kernel.
#![allow(non_camel_case_types)]

extern crate alloc;

pub mod jumps;
pub mod listing;
pub mod register;
pub mod regs;
pub mod stopping;
pub mod testing;
pub mod types;

cfg_if::cfg_if! {
    if #[cfg(feature = "process")] {
        pub mod process;
        use process as host;
    } else {
        pub mod kernel;
        use kernel as host;
    }
}

use probe_arch_native::Native;
