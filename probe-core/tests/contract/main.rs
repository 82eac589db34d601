//! The contract, rule by rule, on a toy architecture: every rule that needs no real one has a test that names it.

#![allow(unreachable_pub, reason = "the toy is also included by the documentation's example")]

mod alloc_count;
mod arrival;
mod control;
mod errors;
mod hit;
mod injection;
mod jprobe;
mod kretprobe;
mod memory;
#[cfg(not(miri))]
mod model;
mod optimise;
mod order;
mod post_by_jump;
mod registration;
mod single_step;
mod stacks;
mod threads;
mod together;
#[allow(dead_code)]
mod toy;
mod watch;

use probe_core::{Hit, Kprobe, Kretprobe, Place, RegisterError};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use toy::*;

type K = Kprobe<Toy>;
type R = Kretprobe<Toy>;

/// A function that returns its argument + 5, without a stack imbalance.
fn plus_five(world: &World, name: &str) -> usize {
    world.function(name, &[ADD, 0, 1, BORROW, 0, ADDRESS, 1, 0, ADD, 0, 3, BRANCH, 5, 1, NOP, RETURN])
}

/// The offsets of `plus_five`'s instructions.
const PLUS_FIVE: [isize; 7] = [0, 3, 5, 8, 11, 14, 15];

/// An event log that handlers write to.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn new() -> &'static Self {
        Box::leak(Box::default())
    }
    fn add(&self, event: impl Into<String>) {
        self.0.lock().unwrap().push(event.into());
    }
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A counter that handlers can own.
fn counter() -> &'static AtomicUsize {
    Box::leak(Box::default())
}

fn at(function: usize, offset: isize) -> Place {
    Place::addr(function.into()).offset(offset)
}

/// Counts one more.
fn bump(counter: &AtomicUsize) {
    counter.fetch_add(1, SeqCst);
}
