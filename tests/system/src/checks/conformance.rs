//! The conformance suite that every host runs, in this kernel.

use crate::arch::Outcome;
use crate::host::{Kernel, PROBES};
use crate::{println, task};
use alloc::vec::Vec;
use probe_conformance::Suite;
use probe_core::Probes;

struct InKernel;

impl Suite for InKernel {
    type Host = Kernel;

    fn probes() -> &'static Probes<Kernel> {
        &PROBES
    }

    fn run_on_contexts(n: usize, body: &(dyn Fn(usize) + Sync)) {
        // SAFETY: every task is waited for below, so the borrow outlives them.
        let body =
            unsafe { core::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body) };
        let tasks: Vec<_> = (0..n).map(|number| task::spawn("context", move || body(number))).collect();
        tasks.iter().for_each(|task| task.join());
    }
}

/// Runs the cases whose name contains `filter`.
pub fn run(filter: &str) -> Outcome {
    let summary = probe_conformance::run::<InKernel>(filter, &mut |line| println!("{line}"));
    println!("conformance: {summary}");
    if summary.failed == 0 { Outcome::Passed } else { Outcome::Failed }
}
