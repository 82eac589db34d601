//! What most kernels that vendor the probes would write themselves, each part an optional feature.
//!
//! | module | what it is for | the kernel gives |
//! |---|---|---|
//! | [`rendezvous`] | [`Host::sync_cores`]; text that changes while the other CPUs wait | an interrupt to another CPU |
//! | [`extable`] | [`Host::memory`](probe_core::host::Host::memory), [`Host::read_text`] | a call in its fault handler |
//! | [`walk`] | the same | whether a page is mapped |
//! | [`exec`] | [`Host::alloc_exec`](probe_core::host::Host::alloc_exec), [`Host::write_text`](probe_core::host::Host::write_text) | windows of addresses, map, unmap, an alias |
//! | [`stacks`] | [`Host::task`]: which stack is running | where its stacks lie |
//! | [`symbols`] | [`Host::find_symbols`](probe_core::host::Host::find_symbols), [`Host::symbol_at`](probe_core::host::Host::symbol_at) | a sorted table |
//! | [`elf`] | the same | its own ELF file, in memory |
//! | [`packed`] | the same | a compressed table, made by `pack` when it is built |
//! | [`files`] | `list`, `enabled`, `blacklist`, `kprobe_events` and its family | calls at "read at" and "write" |
//! | [`events`], [`trace`] | what `kprobe_events` defines, and what its hits leave | time, CPU and task, if it likes |
//!
//! All of it is `no_std`, and what is called in a hit takes no lock and allocates nothing. The test kernels
//! (`tests/system`) use all but [`elf`] and [`exec::ExecMemory`], which the kernel of `docs/vendoring.md`
//! uses; of [`packed`] they check that it finds what their own table has.
//!
//! [`Host::sync_cores`]: probe_core::host::Host::sync_cores
//! [`Host::read_text`]: probe_core::host::Host::read_text
//! [`Host::task`]: probe_core::host::Host::task
#![no_std]

#[cfg(any(feature = "elf", feature = "files", feature = "pack"))]
extern crate alloc;

#[cfg(feature = "elf")]
pub mod elf;
#[cfg(feature = "files")]
pub mod events;
#[cfg(feature = "exec")]
pub mod exec;
#[cfg(feature = "extable")]
pub mod extable;
#[cfg(feature = "files")]
mod fetch;
#[cfg(feature = "files")]
pub mod files;
#[cfg(feature = "pack")]
pub mod pack;
#[cfg(feature = "packed")]
pub mod packed;
#[cfg(feature = "rendezvous")]
pub mod rendezvous;
#[cfg(feature = "stacks")]
pub mod stacks;
#[cfg(feature = "symbols")]
pub mod symbols;
#[cfg(feature = "files")]
pub mod trace;
#[cfg(feature = "walk")]
pub mod walk;
