//! Symbols of every loaded object. What their files say, [`probe_elf_symbols`] reads.
//!
//! `objects`: what is loaded, kept up to date · `arrival`: whether a call comes to a place, from unwind tables in memory (`copied`) ·
//! `eh_frame`: function bounds that only the unwind table knows · `ifunc`: which implementation a symbol stands for.

pub(crate) mod arrival;
mod copied;
pub(crate) mod eh_frame;
pub(crate) mod ifunc;
pub(crate) mod objects;
