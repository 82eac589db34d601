//! Sequences of registry operations on the toy world, against a plain model: probe-core's own, with choices
//! made by the input.

#![allow(missing_docs, dead_code, unused_imports, unreachable_pub, reason = "modules of probe-core's tests")]

use probe_core::{Kprobe, Kretprobe, Place};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use toy::*;

#[path = "../../../probe-core/tests/contract/model.rs"]
mod model;
#[path = "../../../probe-core/tests/contract/toy/mod.rs"]
mod toy;

type K = Kprobe<Toy>;
type R = Kretprobe<Toy>;

/// An event log that handlers write to.
#[derive(Default)]
pub struct Log(Mutex<Vec<String>>);

impl Log {
    fn new() -> &'static Self {
        Box::leak(Box::default())
    }
    fn add(&self, event: impl Into<String>) {
        self.0.lock().expect("no handler panics").push(event.into());
    }
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no handler panics"))
    }
}

fn at(function: usize, offset: isize) -> Place {
    Place::addr(function.into()).offset(offset)
}

/// Does what the input says on both sides and compares after each operation.
pub fn operations(data: &[u8]) {
    model::run_bytes(data);
}
