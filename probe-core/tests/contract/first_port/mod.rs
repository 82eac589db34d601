//! A first port of an architecture: kprobes by a breakpoint keep their rules, and what it has no power for is
//! refused.

#[allow(dead_code)]
#[path = "../helpers.rs"]
mod helpers;
#[path = "../hit.rs"]
mod hit;
mod refused;
#[allow(dead_code)]
mod toy;

use super::alloc_count;
use helpers::*;
use probe_core::handler::Hit;
use std::sync::atomic::Ordering::SeqCst;
use toy::*;
