//! Linux-style kprobes, jprobes and kretprobes for any kernel and any process: the architecture-neutral core.
//!
//! A program keeps one [`Probes`] in a static, over its [`Host`](host::Host). Probes are built with
//! [`Kprobe`], [`Jprobe`], [`Kretprobe`] and [`Watchpoint`], registered with [`Probes::register`], and live
//! as long as their handle, [`Probe`].
//!
//! | of [`Probes`] | for |
//! |---|---|
//! | [`traps`](Probes::traps), [`events`](Probes::events) | the host: its traps, its tasks that end, its text that goes |
//! | [`files`](Probes::files) | `list`, `enabled`, `blacklist`, as the kernel's debugfs has them |
//! | [`jumps`](Probes::jumps), [`pools`](Probes::pools) | the owner: jumps instead of breakpoints, room for followed calls |
//! | its own methods | users: registering, removing, the switch, `explain`, the self-tests |
//!
//! Inside there are floors, each of which knows only what is below it:
//!
//! | floor | what it is |
//! |---|---|
//! | `face` | probes as their users make and see them |
//! | `registry` | the locked half: what registers and removes, and writes the state |
//! | `hit` | the lock-free half, beside it: what traps and jumps lead to, and reads the state |
//! | `state` | what stands: points, text, slots, stubs, calls, detours, contexts; and the [`host`] that gives them |
//! | the files beside these | addresses, [`error`]s, the backend's traits ([`arch`]), atomics, tables, lists |
//!
//! ```
//! # mod toy {
//! #     macro_rules! part { ($name:ident) => { pub mod $name {
//! #         include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/contract/toy/", stringify!($name), ".rs"));
//! #     } } }
//! #     part!(backend);
//! #     part!(instructions);
//! #     part!(machine);
//! #     part!(world);
//! #     pub use {backend::*, instructions::*, machine::*, world::*};
//! # }
//! # use toy::{ADD, RETURN, Toy, World};
//! use probe_core::{Kprobe, Kretprobe};
//!
//! // A whole program on a toy processor; a real one has a static `PROBES`.
//! let world = World::new();
//! let double = world.function("add_two", &[ADD, 0, 1, ADD, 0, 1, RETURN]);
//! let probes = &world.probes;
//! probes.self_test()?;
//!
//! let first = probes.register(Kprobe::<Toy>::at("add_two").pre(|hit| println!("r0 = {:?}", hit.argument(0))))?;
//! let calls = probes.register(
//!     Kretprobe::<Toy>::at("add_two")
//!         .max_active(20)
//!         .entry(|call| call.argument(0))
//!         .exit(|ret, argument| ret.set_value(ret.value() + 100 * argument)),
//! )?;
//! assert_eq!(world.value(double, &[7]), 9 + 700);
//! assert_eq!((first.counters().hits, calls.counters().hits), (1, 1));
//!
//! drop(calls); // unregisters
//! assert_eq!(world.value(double, &[7]), 9);
//! assert_eq!(first.counters().hits, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]

extern crate alloc;

mod addr;
pub mod arch;
mod arrival;
pub mod error;
mod face;
mod held;
mod hit;
mod jump;
mod list;
mod place;
mod registry;
mod room;
mod state;
mod sync;
mod table;

pub use addr::CodeAddr;
pub use face::jprobe::Jprobe;
pub use face::kprobe::Kprobe;
pub use face::kretprobe::Kretprobe;
pub use face::{events, files, jumps, pools, traps};
pub use place::Place;
pub use registry::{Explanation, Kept, Probe, Stopped, Watch};
pub use state::host;
pub use state::pending::AnyProbe;
pub use state::probes::Probes;
pub use state::switches::Switch;
pub use state::tally::{Counters, Kind, Misses};
pub use state::watch::{Trigger, WatchRange, Watchpoint};

/// The arguments of handlers, and their answers.
pub mod handler {
    pub use crate::face::jprobe::JprobeHandler;
    pub use crate::face::kprobe::Hit;
    pub use crate::face::kretprobe::{Call, Fresh, Return, Settled};
    pub use crate::state::handler::{Answer, Flow, Follow};
    pub use crate::state::lender::TargetMemory;
    pub use crate::state::watch::WatchHit;
}

/// Questions about text in which nothing is planted, for tools.
#[doc(hidden)]
pub mod dry_run {
    pub use crate::jump::{BranchTargets, displaced_by_jump, post_by_jump};
}

/// How many there can be, and how large.
pub mod limits {
    pub use crate::state::context::MAX_DEPTH;
    pub use crate::state::pending::MAX_DATA_LEN;
    pub use crate::state::pool::MAX_ACTIVE;
    pub use crate::state::watch::MAX_WATCHPOINTS;
}
