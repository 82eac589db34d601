//! An ordering of the core's, weakened for one run: `PROBE_WEAKEN=state/life.rs:166` (with `=acquire` or
//! `=release` behind it, what is left of it; else nothing). A model that passes all the same does not need
//! it. `PROBE_WEAKEN=list` prints those that are used.

extern crate std;

use core::panic::Location;
use loom::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::string::String;
use std::sync::{Mutex, OnceLock};

/// What is asked for: a place, and what its ordering becomes.
fn asked() -> Option<&'static (String, Ordering)> {
    static ASKED: OnceLock<Option<(String, Ordering)>> = OnceLock::new();
    let read = || {
        let asked = std::env::var("PROBE_WEAKEN").ok()?;
        Some(match asked.split_once('=') {
            Some((place, "acquire")) => (place.into(), Ordering::Acquire),
            Some((place, "release")) => (place.into(), Ordering::Release),
            _ => (asked, Ordering::Relaxed),
        })
    };
    ASKED.get_or_init(read).as_ref()
}

/// What the caller's ordering is in this run.
#[track_caller]
pub(super) fn weakened(order: Ordering) -> Ordering {
    let at = Location::caller();
    match asked() {
        Some((place, to)) if order != Ordering::Relaxed && is_at(at, place) => *to,
        Some((list, _)) if list == "list" && order != Ordering::Relaxed => {
            tell(at, order);
            order
        }
        _ => order,
    }
}

/// The same for a fence, which is left out where nothing is left of it.
#[track_caller]
pub(crate) fn fence(order: Ordering) {
    let order = weakened(order);
    if order != Ordering::Relaxed {
        loom::sync::atomic::fence(order);
    }
}

fn is_at(at: &Location<'_>, place: &str) -> bool {
    let (file, line) = place.rsplit_once(':').unwrap_or((place, ""));
    at.file().ends_with(file) && (line.is_empty() || line.parse() == Ok(at.line()))
}

/// Prints a place when it is used first.
fn tell(at: &Location<'_>, order: Ordering) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = std::format!("{at} {order:?}");
    let is_new = TOLD.lock().is_ok_and(|mut told| told.insert(line.clone()));
    if is_new {
        std::println!("used: {line}");
    }
}
