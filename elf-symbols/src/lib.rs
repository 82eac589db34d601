//! What ELF files say of their code, for whoever probes it. A file may be anybody's: it is read within bounds (EVT_2).
//!
//! [`mod@file`]: where the tables of symbols come from · [`index`]: one object's table, sorted by address, hashed by name ·
//! [`demangle`]: Rust and C++ names · [`arrival`]: whether a call comes to a place · [`sequences`]: what the kernel would
//! restart · [`building`]: tables are built under one lock.
//!
//! Nothing here is for the hit path: memory is allocated and files are read.

pub mod arrival;
pub mod building;
pub mod demangle;
pub mod file;
pub mod index;
pub mod sequences;
