//! Symbols of every loaded object: from `.symtab`, `.dynsym`, separate debug files and mini symbol tables.
//!
//! `index`: one object's table, sorted by address, hashed by name · `file`: where the tables come from ·
//! `demangle`: Rust and C++ names · `eh_frame`: function bounds that only the unwind table knows ·
//! `arrival`: whether a call comes to a place · `sequences`: what the kernel would restart · `objects`: what is loaded, kept up to date · `ifunc`: which implementation a symbol stands for.

pub mod arrival;
pub mod demangle;
pub(crate) mod eh_frame;
pub mod file;
pub(crate) mod ifunc;
pub mod index;
pub(crate) mod objects;
pub mod sequences;
