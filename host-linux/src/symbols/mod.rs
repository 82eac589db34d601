//! Symbols of every loaded object; [`probe_elf_symbols`] reads their files.
//!
//! `objects`: the loaded objects, kept up to date · `arrival`: whether control arrives at a place by a call,
//! from unwind tables in memory (`copied`) · `eh_frame`: function bounds that only the unwind table knows ·
//! `ifunc`: the implementation of an indirect function · `foreign`: objects that the loader does not name.

pub(crate) mod arrival;
mod copied;
pub(crate) mod eh_frame;
mod foreign;
pub(crate) mod ifunc;
pub(crate) mod objects;
