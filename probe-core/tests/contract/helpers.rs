//! Helpers for tests of either backend.

use super::toy::*;
use probe_core::{Kprobe, Kretprobe, Place};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

pub(crate) type K = Kprobe<Toy>;
pub(crate) type R = Kretprobe<Toy>;

/// A function that returns its argument + 5, without a stack imbalance.
pub(crate) fn plus_five(world: &World, name: &str) -> usize {
    world.function(name, &[ADD, 0, 1, BORROW, 0, ADDRESS, 1, 0, ADD, 0, 3, BRANCH, 5, 1, NOP, RETURN])
}

/// The offsets of `plus_five`'s instructions.
pub(crate) const PLUS_FIVE: [isize; 7] = [0, 3, 5, 8, 11, 14, 15];

/// An event log that handlers write to.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<String>>);

impl Log {
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::default())
    }
    pub(crate) fn add(&self, event: impl Into<String>) {
        self.0.lock().unwrap().push(event.into());
    }
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A counter that handlers can own.
pub(crate) fn counter() -> &'static AtomicUsize {
    Box::leak(Box::default())
}

pub(crate) fn at(function: usize, offset: isize) -> Place {
    Place::addr(function.into()).offset(offset)
}

/// Counts one more.
pub(crate) fn bump(counter: &AtomicUsize) {
    counter.fetch_add(1, SeqCst);
}
