//! The memory between the traced program and the command: one memfd, mapped by both.
//!
//! ```text
//! Header │ plans │ statistics (counters, histograms) │ ring 0 │ ring 1 │ …
//! ```
//!
//! The agent writes, the command reads. Each thread owns one [`Ring`] (single producer, single consumer, no
//! lock). A full ring drops the event and counts it, or, if that is asked for, makes its thread wait as long
//! as the command lives. The region is as large as it may ever become and sparse: memory is used where it has
//! been written.
//!
//! The region is written by the traced program, and may change while it is looked at. So the command trusts
//! none of it, and keeps no reference to any of it: a [`Reader`] gives copies, each with a checked length.

mod calls;
mod futex;
mod hostile;
mod maps;
mod placed;
mod plan;
mod record;
pub(crate) mod region;
pub mod request;
mod ring;
mod stats;

pub use calls::{Call, Calls};
pub use hostile::{LONGEST_RECORD, Progress, Reader};
pub use maps::MapRoom;
pub use placed::{Found, Placed};
pub use plan::{
    COUNT_COMM, COUNTED_STACK, FETCH, MATCH, MOST_WORDS, MapKind, MapPlan, NUMBER_TEXT, Pattern, Plan, Rule,
    Site, Value as RuleValue,
};
pub use record::{
    EVENT_HEAD, EXACT, Event, FAULT, Image, Kind, Meta, Point, Record, TRUNCATED, Value, Values, decode,
};
pub use region::{Flags, Header, Layout, MOST_PLACED, MapError, Region};
pub use ring::{From, Owner, Reservation, Ring, RingControl};
pub use stats::{
    BUCKETS, Count, Counters, Counting, Counts, Durations, Histogram, Share, bucket_bounds, bucket_of,
};
