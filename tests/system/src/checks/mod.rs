//! What is checked: the kernel itself, then the probes in it, each a sentence that can fail; then the suite
//! that all hosts run.

mod conformance;
mod kernel;
mod probes;

use crate::arch::Outcome;
use crate::lock::SpinLock;
use crate::memory::Mapped;
use crate::{cmdline, println};

/// A check: fails by panicking, or says that the machine lacks what it is about ([`skip`]).
type Check = (&'static str, fn());

static SKIPPED: SpinLock<Option<&'static str>> = SpinLock::new(None);

/// Says why the check that runs, and ends now, has nothing to check.
fn skip(why: &'static str) {
    *SKIPPED.lock() = Some(why);
}

/// Runs all checks whose sentence contains the command line's `only=WORD`.
pub fn run() -> Outcome {
    let (mut passed, mut skipped) = (0, 0);
    let wanted = cmdline::value("only").unwrap_or_default();
    for (name, check) in kernel::CHECKS.iter().chain(probes::CHECKS).filter(|(name, _)| name.contains(wanted))
    {
        check();
        no_page_is_both();
        match SKIPPED.lock().take() {
            None => {
                passed += 1;
                println!("ok {name}");
            }
            Some(why) => {
                skipped += 1;
                println!("skipped {name}: {why}");
            }
        }
    }
    println!("checks: {passed} passed, {skipped} skipped");
    conformance::run(wanted)
}

/// SAFE_1, as the page tables have it: looked at after each check and each case of the suite.
fn no_page_is_both() {
    assert_eq!(Mapped::look().both, None, "a page may be written and executed");
}
