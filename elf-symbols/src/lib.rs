//! Facts about code from ELF files. A file may be anybody's, so it is read within bounds (EVT_2).
//!
//! [`mod@file`]: the tables of symbols of a file · [`index`]: one object's table, sorted by address, hashed
//! by name · [`demangle`]: Rust and C++ names · [`arrival`]: whether control arrives at a place by a call ·
//! [`sequences`]: restartable sequences · [`building`]: the lock under which tables are built.
//!
//! Nothing here is for the hit path: memory is allocated and files are read.

pub mod arrival;
pub mod building;
mod class;
pub mod demangle;
pub mod file;
pub mod index;
pub mod sequences;
