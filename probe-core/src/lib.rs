//! Linux-style kprobes, jprobes and kretprobes for any kernel and any process: the architecture-neutral core.
//!
//! A program keeps one [`Probes`] in a static, over its [`Host`](host::Host); the trap code calls
//! [`Probes::breakpoint`] and [`Probes::fault`]. Probes are built with [`Kprobe`], [`Jprobe`] and [`Kretprobe`],
//! registered with [`Probes::register`], and live as long as their handle, [`Probe`].
//!
//! The rooms: `addr`, [`arch`], [`host`], [`error`] · `place` · `kprobe`, `jprobe`, `kretprobe` · `point` one patched
//! address · `table` address to point · `slots` · `pool`, `instance`, `life` return
//! instances · `owner` who uses something alone · `context` the active hits · `task` a stack and its pending returns · `quiesce` grace
//! periods · `watch` watchpoints · `registry` the locked half · `hit`, `step` and `ret` the lock-free half · `listing`.
//!
//! ```
//! # mod toy {
//! #     macro_rules! part { ($name:ident) => { pub mod $name {
//! #         include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/contract/toy/", stringify!($name), ".rs"));
//! #     } } }
//! #     part!(instructions);
//! #     part!(machine);
//! #     part!(world);
//! #     pub use {instructions::*, machine::*, world::*};
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
//!     Kretprobe::<Toy>::on("add_two")
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
mod context;
mod counter;
mod detour;
pub mod error;
mod face;
mod held;
mod hit;
pub mod host;
mod instance;
mod jprobe;
mod jump;
mod kprobe;
mod kretprobe;
mod life;
mod list;
mod listing;
mod lock;
mod owner;
mod place;
mod point;
mod pool;
mod probes;
mod quiesce;
mod registry;
mod ret;
mod room;
mod slots;
mod spare;
mod step;
mod stub;
mod sync;
mod table;
mod task;
mod text;
mod watch;

pub use addr::CodeAddr;
pub use arrival::Arrival;
pub use context::{Context, MAX_DEPTH};
pub use error::{BatchError, ControlError, Errno, Refusal, RegisterError, TextError};
pub use hit::{FaultVerdict, Trap};
pub use jprobe::{Jprobe, JprobeHandler};
pub use jump::{BranchTargets, displaced_by_jump, post_by_jump};
pub use kprobe::{Answer, AnyProbe, Flow, Hit, Kprobe, TargetMemory};
pub use kretprobe::{Call, Follow, Fresh, Kretprobe, MAX_DATA_LEN, Return, Settled};
pub use listing::Viewer;
pub use place::Place;
pub use pool::MAX_ACTIVE;
pub use probes::Probes;
pub use registry::{Counters, Explanation, Kept, Kind, Probe, SelfTestError, Switch, Watch};
pub use task::Task;
pub use watch::{MAX_WATCHPOINTS, Trigger, WatchHit, WatchRange, Watchpoint};
