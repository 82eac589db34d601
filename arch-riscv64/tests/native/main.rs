//! Transparency on the architecture itself: each instruction class executed unprobed and probed from the same
//! states (HIT_1, HIT_9, HIT_11), trampolines (RET_4), unwinding (RET_7), the jump probes' trap (JMP_2) and
//! publication (SAFE_3).
//!
//! `cargo test -p probe-arch-riscv64 --target riscv64gc-unknown-linux-gnu --test native`, under QEMU's user
//! mode or on hardware. Builds to nothing elsewhere: what it runs exists on riscv64 only.
#![cfg(all(target_arch = "riscv64", target_os = "linux"))]

#[path = "../../../tests/transparency.rs"]
mod coverage;
mod machine;
mod publication;
mod trampolines;
mod transparency;
mod unwinding;
