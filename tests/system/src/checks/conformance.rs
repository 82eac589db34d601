//! The conformance suite that every host runs, in this kernel.

use crate::arch::{Machine, Native, Outcome};
use crate::host::{Kernel, PROBES};
use crate::{println, task};
use alloc::vec::Vec;
use probe_conformance::Suite;
use probe_core::{Probes, Switch};

struct InKernel;

impl Suite for InKernel {
    type Host = Kernel;

    fn probes() -> &'static Probes<Kernel> {
        &PROBES
    }

    fn contexts() -> usize {
        2
    }

    fn run_on_contexts(n: usize, body: &(dyn Fn(usize) + Sync)) {
        // SAFETY: every task is waited for below, so the borrow outlives them.
        let body =
            unsafe { core::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body) };
        let tasks: Vec<_> = (0..n).map(|number| task::spawn("context", move || body(number))).collect();
        tasks.iter().for_each(|task| task.join());
    }

    /// The area of this CPU on x86-64; nothing has GS on i386.
    fn gs_base() -> usize {
        if cfg!(target_arch = "x86_64") { core::ptr::from_ref(Native::this_cpu()).addr() } else { 0 }
    }

    fn stay(body: &mut dyn FnMut()) {
        task::disable_preemption();
        body();
        task::enable_preemption();
    }
}

/// Runs the cases whose name contains `filter`, with traps and then with jumps wherever a jump can be.
pub fn run(filter: &str) -> Outcome {
    crate::heap::poison();
    let by_traps = probe_conformance::run::<InKernel>(filter, &mut |line| {
        super::no_page_is_both();
        println!("{line}");
    });
    println!("conformance: {by_traps}");
    PROBES.jumps().set_automatic(Switch::On);
    let by_jumps = probe_conformance::run::<InKernel>(filter, &mut |line| {
        super::no_page_is_both();
        println!("{}", line.replacen(" ...", ", by jumps ...", 1));
    });
    PROBES.jumps().set_automatic(Switch::Off);
    println!("conformance, by jumps: {by_jumps}");
    if by_traps.failed + by_jumps.failed == 0 { Outcome::Passed } else { Outcome::Failed }
}
