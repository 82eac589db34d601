//! The locked half: registering, removing, switching.
//!
//! One spin lock is around everything that changes text, tables or lists. Order is by construction: a point
//! is prepared (decoded, slot filled), published (in the table, its probes on its list), armed (breakpoint in
//! text); disarmed, taken off, and freed after a grace period. Nothing here may be called from a handler;
//! what a handler may do (disable, drop a handle) is noted, and done by the next call.

mod arm;
mod batch;
mod detours;
mod explain;
mod handle;
mod optimise;
mod plans;
mod points;
mod remove;
mod resolve;
mod rooms;
mod stop;
mod stubs;
mod watch;

pub use explain::Explanation;
pub use handle::{Kept, Probe};
pub use stop::Stopped;
pub use watch::Watch;
