//! Linux-style kprobes, jprobes and kretprobes for any kernel and any process: the architecture-neutral core.
#![no_std]

extern crate alloc;

mod addr;
pub mod arch;
mod context;
pub mod error;
mod hit;
pub mod host;
mod instance;
mod jprobe;
mod kprobe;
mod kretprobe;
mod listing;
mod place;
mod point;
mod quiesce;
mod registry;
mod ret;
mod slots;
mod sync;
mod table;

pub use addr::CodeAddr;
pub use context::{Context, MAX_DEPTH, Task};
pub use error::{BatchError, ControlError, Errno, Refusal, RegisterError, TextError};
pub use hit::{FaultVerdict, Trap};
pub use jprobe::{Jprobe, JprobeHandler};
pub use kprobe::{Answer, AnyProbe, Flow, Hit, Kprobe, TargetMemory};
pub use kretprobe::{Call, Follow, Fresh, Kretprobe, MAX_DATA_LEN, Return, Settled};
pub use listing::Viewer;
pub use place::Place;
pub use registry::{Counters, Explanation, Kept, Kind, Probe, Probes, Switch};
