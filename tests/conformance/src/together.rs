//! REG_21: probes of every kind come to one place and go from it in any order, each in a registration of its
//! own.

use crate::check::{Outcome, equal, ok, that};
use crate::hit::cell;
use crate::jmp::two;
use crate::reg::text;
use crate::targets::{FRESH, Fresh};
use crate::{Case, Suite};
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use probe_core::error::RegisterError;
use probe_core::files::Viewer;
use probe_core::host::Host;
use probe_core::{Kprobe, Kretprobe, Probe, Probes};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        reg_21_probes_come_and_go_in_every_order,
        reg_21_probes_come_and_go_separately_while_contexts_call,
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kprobe,
    Return,
    Jprobe,
}

use Kind::{Jprobe as J, Kprobe as K, Return as R};

const ORDERS: [[Kind; 3]; 6] = [[K, R, J], [R, K, J], [K, J, R], [J, K, R], [R, J, K], [J, R, K]];

/// Half of the fresh places for each case.
const PLACES: usize = ORDERS.len();

/// Registers a probe of that kind, by itself.
fn register<H: Host>(
    probes: &'static Probes<H>,
    fresh: Fresh,
    kind: Kind,
) -> Result<Probe<H>, RegisterError> {
    extern "C" fn handler(_: usize, _: usize) -> usize {
        0
    }
    match kind {
        K => probes.register(Kprobe::at(fresh.name).pre(|_| ())),
        R => probes.register(Kretprobe::at(fresh.name).max_active(16).exit(|_, ()| ())),
        J => probes.register(two(fresh.name, handler)),
    }
}

/// Calls the place: each of the probes sees it, and the listing shows them all, none of them gone.
fn check<H: Host>(probes: &Probes<H>, fresh: Fresh, held: &[(Kind, Probe<H>)]) -> Outcome {
    let hits = || held.iter().map(|(_, probe)| probe.counters().hits).collect::<Vec<_>>();
    let expected: Vec<u64> = hits().iter().map(|count| count + 2).collect();
    // The second call takes the short ways of the context that came first.
    for n in 0..2 {
        that!(fresh.is_right(n, 5), "{}({n}, 5) is wrong", fresh.name);
    }
    equal!(hits(), expected);
    let mut listing = String::new();
    let _ = probes.files().list(&mut listing, Viewer::Privileged);
    equal!(listing.lines().count(), held.len());
    that!(!listing.contains("[GONE]"), "{listing}");
    Ok(())
}

fn reg_21_probes_come_and_go_in_every_order<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    for (coming, fresh) in ORDERS.iter().zip(FRESH.iter().take(PLACES)) {
        let before = text(probes, fresh.name);
        for going in &ORDERS {
            let mut held = Vec::new();
            for kind in coming {
                held.push((*kind, ok!(register(probes, *fresh, *kind))));
                check(probes, *fresh, &held)?;
            }
            for kind in going {
                held.retain(|(other, _)| other != kind);
                check(probes, *fresh, &held)?;
            }
            that!(text(probes, fresh.name) == before, "{coming:?} came, {going:?} went: text has changed");
        }
    }
    Ok(())
}

fn reg_21_probes_come_and_go_separately_while_contexts_call<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    crate::needs_contexts::<S>()?;
    const CALLERS: usize = 2;
    let (wrong, in_wrong) = cell();
    let (failed, in_failed) = cell();
    for (coming, fresh) in ORDERS.iter().zip(FRESH.iter().skip(PLACES)) {
        let before = text(probes, fresh.name);
        let (over, is_over) = cell();
        S::run_on_contexts(CALLERS + 1, &|context| {
            if context == 0 {
                for going in &ORDERS {
                    let mut held = Vec::new();
                    for kind in coming {
                        match register(probes, *fresh, *kind) {
                            Ok(probe) => held.push((*kind, probe)),
                            Err(_) => {
                                in_failed.fetch_add(1, Relaxed);
                            }
                        }
                    }
                    going.iter().for_each(|kind| held.retain(|(other, _)| other != kind));
                }
                is_over.store(1, Relaxed);
            } else {
                // Contexts that share one CPU run one after the other: nobody waits for the flag alone.
                for n in 0..2_000 {
                    if !fresh.is_right(n, context) {
                        in_wrong.fetch_add(1, Relaxed);
                    }
                    if over.load(Relaxed) != 0 && n > 100 {
                        break;
                    }
                }
            }
        });
        equal!((wrong.load(Relaxed), failed.load(Relaxed)), (0, 0));
        that!(text(probes, fresh.name) == before, "{coming:?} came and went: text has changed");
    }
    Ok(())
}
