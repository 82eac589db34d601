//! The atomics of what `tests/models` runs, in one place so that a model checker can be put under them.

pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
