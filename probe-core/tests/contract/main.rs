//! The contract, rule by rule, on a toy architecture: every rule that needs no real one has a test that names
//! it.

#![allow(unreachable_pub, reason = "the toy is also included by the documentation's example")]
#![allow(clippy::duplicate_mod, reason = "the rules run on two toys")]

mod all_or_nothing;
mod alloc_count;
mod arrival;
mod boundaries;
mod control;
mod errors;
mod first_port;
mod helpers;
mod hit;
mod hit_powers;
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
mod removal;
mod single_step;
mod stacks;
mod stop;
mod threads;
mod together;
#[allow(dead_code)]
mod toy;
mod watch;

use helpers::*;
use probe_core::error::RegisterError;
use probe_core::handler::Hit;
use probe_core::{Kretprobe, Place};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use toy::*;
