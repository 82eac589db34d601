//! One conformance suite for every architecture, host and mode.
//!
//! The suite is a table of [`Case`]s, generic over a [`Suite`]: any [`Host`] plus the few things that a test
//! needs (other contexts, a line of output). It runs unchanged in a Linux process and in a kernel. A case is
//! named after the rule of the contract that it covers: `reg_2_unknown_symbol_is_enoent`.
//!
//! A new kernel port runs it as its last step: implement [`Suite`], call [`run`].
#![no_std]

extern crate alloc;

mod borrow;
mod check;
mod ctl;
mod hit;
mod jmp;
mod reg;
mod ret;
mod safe;
pub mod targets;
mod together;
mod watch;

use alloc::string::String;
use core::fmt;
use probe_core::Probes;
use probe_core::host::Host;

pub use check::{Ended, Failure, Outcome};

/// What a program adds to its host so that the suite can run on it.
pub trait Suite: Sized + 'static {
    /// The host.
    type Host: Host;

    /// The one set of probes of this program.
    fn probes() -> &'static Probes<Self::Host>;

    /// How many contexts or tasks can run at the same time, or take turns. Where it is one, cases that need
    /// more are skipped, and say so.
    fn contexts() -> usize;

    /// Runs `body(0)` … `body(n - 1)` at the same time on `n` contexts (threads, CPUs), and returns when all
    /// are done. Where there are fewer contexts, but at least two, some of them run several bodies one after
    /// the other, in order. Not called where there is one.
    fn run_on_contexts(n: usize, body: &(dyn Fn(usize) + Sync)) {
        (0..n).for_each(body);
    }

    /// Where the segment in GS begins (x86), as the program that runs the suite has it in the running
    /// context.
    fn gs_base() -> usize {
        0
    }

    /// Runs `body` in the running context from beginning to end (a kernel: without preemption).
    fn stay(body: &mut dyn FnMut()) {
        body();
    }
}

/// The architecture that a suite runs on.
pub type ArchOf<S> = <<S as Suite>::Host as Host>::Arch;

/// One test: its name and what it does.
pub struct Case<S: Suite> {
    /// A sentence that starts with the rule it covers.
    pub name: &'static str,
    /// Runs it; leaves no probe behind when it succeeds.
    pub run: fn(&'static Probes<S::Host>) -> Outcome,
}

/// All cases, in the contract's order.
pub fn cases<S: Suite>() -> impl Iterator<Item = Case<S>> {
    let chapters = [
        reg::cases(),
        together::cases(),
        hit::cases(),
        ret::cases(),
        jmp::cases(),
        ctl::cases(),
        safe::cases(),
        watch::cases(),
    ];
    chapters.into_iter().flatten()
}

/// How a run of the suite ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases that held.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases about something that the host or the machine lacks.
    pub skipped: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs every case whose name contains `filter` and says one line for each, in the manner of `cargo test`.
pub fn run<S: Suite>(filter: &str, say: &mut dyn FnMut(&str)) -> Summary {
    let mut summary = Summary::default();
    for case in cases::<S>().filter(|case| case.name.contains(filter)) {
        let line = match (case.run)(S::probes()).and_then(|()| nothing_left::<S>()) {
            Ok(()) => {
                summary.passed += 1;
                alloc::format!("test {} ... ok", case.name)
            }
            Err(Ended::Skipped(why)) => {
                summary.skipped += 1;
                alloc::format!("test {} ... ignored, {why}", case.name)
            }
            Err(Ended::Failed(failure)) => {
                summary.failed += 1;
                alloc::format!("test {} ... FAILED: {failure}", case.name)
            }
        };
        say(&line);
    }
    summary
}

/// The table entries of functions named as sentences.
macro_rules! cases_of {
    ($($name:ident),* $(,)?) => {
        alloc::vec![$($crate::Case { name: stringify!($name), run: $name::<S> }),*]
    };
}
pub(crate) use cases_of;

/// Ends a case that needs a second context where there is none.
fn needs_contexts<S: Suite>() -> Outcome {
    if S::contexts() < 2 {
        return Err(Ended::Skipped("this kernel runs one thing only: `Suite::contexts` says 1"));
    }
    Ok(())
}

/// No case may leave a probe behind.
fn nothing_left<S: Suite>() -> Outcome {
    let mut listing = String::new();
    let _ = S::probes().files().list(&mut listing, probe_core::files::Viewer::Privileged);
    check::that!(listing.is_empty(), "probes are left behind:\n{listing}");
    Ok(())
}
