//! See what a running program does: kprobe-style probes in any Linux process, without root.
//!
//! The parts of the command `probe`. Two programs are built from this crate: the command itself (feature
//! `cli`) and the agent (feature `agent`), a shared object that the dynamic linker loads into the traced
//! program. They share the grammar of definitions ([`def`]) and the memory between them ([`wire`]).

#[cfg(feature = "agent")]
mod agent;
#[cfg(any(feature = "agent", test))]
mod began;
#[cfg(feature = "cli")]
pub mod cli;
pub mod def;
pub mod file;
#[cfg(feature = "cli")]
mod filter;
pub mod wire;

use probe_core::arch::{Arch, Regs};
use probe_host_linux::Native;

/// The environment variable that tells the agent where the shared memory is.
pub const REGION_VARIABLE: &str = "PROBE_TRACE_REGION";

/// A variable without a meaning: it accompanies [`REGION_VARIABLE`] where no other variable of ours does, so
/// that an even number can be removed.
pub const PAIR_VARIABLE: &str = "PROBE_TRACE_PAIR";

/// The environment variable with the command that starts programs of this machine, words parted by spaces: an
/// emulator (`qemu-aarch64 -L /usr/aarch64-linux-gnu`). Where it is not set, the kernel executes them.
pub const RUNNER_VARIABLE: &str = "PROBE_RUNNER";

/// The agent for this machine, as build.rs has built it; `None` where there can be none (static libc).
#[cfg(feature = "cli")]
pub const AGENT: Option<&[u8]> = {
    #[cfg(has_agent)]
    const BUILT: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/probe-agent.so")));
    #[cfg(not(has_agent))]
    const BUILT: Option<&[u8]> = None;
    BUILT
};

/// The agent that the command maps into programs that run already; `None` where there is none.
#[cfg(feature = "cli")]
pub const MAPPED_AGENT: Option<&[u8]> = {
    #[cfg(has_mapped)]
    const BUILT: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/probe-mapped.so")));
    #[cfg(not(has_mapped))]
    const BUILT: Option<&[u8]> = None;
    BUILT
};

/// The registers that definitions may name on this machine, with their numbers.
pub fn registers() -> &'static [(&'static str, usize)] {
    <Native as Arch>::Regs::names()
}
