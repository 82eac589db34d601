//! Transparency on the architecture itself: each instruction class executed unprobed and probed from the same
//! states (HIT_1, HIT_9, HIT_11), trampolines (RET_4), unwinding (RET_7), the jprobes' trap (JMP_2) and
//! publication (SAFE_3).
//!
//! `cargo test -p probe-arch-ppc32 --target powerpc-unknown-linux-gnu --test native`, under QEMU's user mode
//! or on hardware. Builds to nothing elsewhere: what it runs exists on ppc32 only.
#![cfg(all(target_arch = "powerpc", target_os = "linux"))]

#[path = "../../../tests/transparency.rs"]
mod coverage;
mod machine;
mod publication;
#[path = "../../../tests/native/mod.rs"]
mod shared;
mod trampolines;
mod transparency;
mod unwinding;

/// What the shared part is told of the architecture.
mod own {
    pub(crate) use crate::trampolines::handler;
    pub(crate) use crate::unwinding::call_through_stub;
    pub(crate) use probe_arch_ppc32::Ppc32 as Backend;
    pub(crate) use probe_unwind::ppc32::eh_frame;
    pub(crate) const BACKEND: Backend = Backend;
}
