//! See what a running program does: kprobe-style probes in any Linux process, without root.
//!
//! The parts of the command `probe`. Two programs are built from this crate: the command itself (feature `cli`)
//! and the agent (feature `agent`), a shared object that the dynamic linker loads into the traced program.
//! They share the grammar of definitions ([`def`]) and the memory between them ([`wire`]).

pub mod def;
pub mod wire;
