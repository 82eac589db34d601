//! The file of `probe record`: what a traced program did, to be looked at later and elsewhere.
//!
//! ```text
//! head │ block │ block │ … │ block with the end
//! ```
//!
//! `docs/record-format.md` describes it byte by byte. All numbers have one byte order, or none (`bytes`), so
//! that a file says the same on every machine. A block has its length and two checksums, and can be
//! understood with what came before it: a file is readable while it is written, and up to where it was cut.
//!
//! A file may come from anywhere. A [`Reader`] takes bounded memory and time for each byte, and what does not
//! fit together ends the reading with a sentence ([`Stop`]).

mod block;
mod bytes;
mod end;
mod event;
mod facts;
mod read;
mod write;

pub use block::{BLOCKS, Damage, Head, MAGIC, VERSION, seal};
pub use end::{End, Loss, NotFollowed, Refused, Row, Times};
#[cfg(feature = "cli")]
pub(crate) use event::{frames, place, stack};
pub use facts::{Fact, Probe, Stack};
pub use read::{Event, Item, Name, Names, Place, Reader, Stop};
pub use write::{Hit, Naming, Writer};

#[cfg(test)]
mod tests;
