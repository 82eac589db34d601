//! What is checked: the kernel itself, then the probes in it, each a sentence that can fail; then the suite that all hosts run.

mod conformance;
mod kernel;
mod probes;

use crate::arch::Outcome;
use crate::{cmdline, println};

/// A check: fails by panicking.
type Check = (&'static str, fn());

/// Runs all checks whose sentence contains the command line's `only=WORD`.
pub fn run() -> Outcome {
    let wanted = cmdline::value("only").unwrap_or_default();
    for (name, check) in kernel::CHECKS.iter().chain(probes::CHECKS).filter(|(name, _)| name.contains(wanted))
    {
        check();
        println!("ok {name}");
    }
    conformance::run(wanted)
}
