//! See what a running program does: kprobe-style probes in any Linux process, without root.
fn main() {}
