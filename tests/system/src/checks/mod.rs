//! What is checked: the kernel itself, then the probes in it, each a sentence that can fail; then the suite
//! that all hosts run.

mod conformance;
mod kernel;
mod probes;

use crate::arch::Outcome;
use crate::memory::Mapped;
use crate::{cmdline, println};

/// A check: fails by panicking.
type Check = (&'static str, fn());

/// Runs all checks whose sentence contains the command line's `only=WORD`.
pub fn run() -> Outcome {
    let wanted = cmdline::value("only").unwrap_or_default();
    for (name, check) in kernel::CHECKS.iter().chain(probes::CHECKS).filter(|(name, _)| name.contains(wanted))
    {
        check();
        no_page_is_both();
        println!("ok {name}");
    }
    conformance::run(wanted)
}

/// SAFE_1, as the page tables have it: looked at after each check and each case of the suite.
fn no_page_is_both() {
    assert_eq!(Mapped::look().both, None, "a page may be written and executed");
}
