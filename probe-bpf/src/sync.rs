//! The atomics of maps, in one place: `tests/models` puts a model checker's under them.

pub(crate) use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
