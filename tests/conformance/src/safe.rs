//! Memory and safety: SAFE_2, SAFE_4, as far as a suite can see them from inside.

use crate::check::{Outcome, equal, ok};
use crate::hit::cell;
use crate::reg::{instructions, text};
use crate::ret::spin_slot;
use crate::targets::call;
use crate::{Case, Suite};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use probe_core::{Kprobe, Kretprobe, Place, Probes};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        safe_2_registering_and_unregistering_while_others_hit,
        safe_2_kretprobes_come_and_go_while_others_call,
        safe_4_a_handle_that_a_handler_drops_is_removed_later,
    ]
}

fn safe_2_registering_and_unregistering_while_others_hit<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    crate::needs_contexts::<S>()?;
    const CONTEXTS: usize = 3;
    let places = instructions(probes, "conformance_mix");
    let bare: Vec<usize> = (0..4).map(|seed| call!(conformance_mix(seed, 20))).collect();
    let (done, is_done) = cell();
    let (wrong, in_wrong) = cell();
    S::run_on_contexts(CONTEXTS + 1, &|context| {
        if context == 0 {
            for round in 0..20_usize {
                let held: Vec<_> = places
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| (index + round) % 3 == 0)
                    .filter_map(|(_, &at)| {
                        let probe = Kprobe::at(Place::addr(at)).pre(|_| ());
                        probes.register(if round % 2 == 0 { probe } else { probe.post(|_| ()) }).ok()
                    })
                    .collect();
                if probes.unregister_all(held).is_err() {
                    in_wrong.fetch_add(1, Relaxed);
                }
            }
            is_done.store(1, Relaxed);
        } else {
            // Contexts that share one CPU run one after the other: then nobody waits for a flag.
            for round in 0..400 {
                let seed = (round + context) % 4;
                if call!(conformance_mix(seed, 20)) != bare[seed] {
                    in_wrong.fetch_add(1, Relaxed);
                }
            }
        }
    });
    equal!(wrong.load(Relaxed), 0);
    equal!(done.load(Relaxed), 1);
    Ok(())
}

fn safe_2_kretprobes_come_and_go_while_others_call<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    crate::needs_contexts::<S>()?;
    const CONTEXTS: usize = 3;
    let (wrong, in_wrong) = cell();
    let (failed, in_failed) = cell();
    S::run_on_contexts(CONTEXTS + 1, &|context| {
        if context == 0 {
            for _ in 0..30 {
                match probes.register(
                    Kretprobe::at("conformance_outer").entry(|call| call.argument(0)).exit(|_, _: usize| ()),
                ) {
                    Ok(probe) => drop(probe),
                    Err(_) => {
                        in_failed.fetch_add(1, Relaxed);
                    }
                }
            }
        } else {
            for n in 0..500 {
                if call!(conformance_outer(n)) != (n + 1) * 10 + 100 {
                    in_wrong.fetch_add(1, Relaxed);
                }
            }
        }
    });
    equal!((wrong.load(Relaxed), failed.load(Relaxed)), (0, 0));
    let probe = ok!(probes.register(Kretprobe::at("conformance_outer")));
    equal!(call!(conformance_outer(1)), 120);
    equal!(probe.counters().hits, 1);
    Ok(())
}

fn safe_4_a_handle_that_a_handler_drops_is_removed_later<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    let before = text(probes, "conformance_mul");
    let inner = ok!(probes.register(Kprobe::at("conformance_mul").pre(|_| ())));
    let slot = spin_slot(inner);
    let outer = ok!(probes.register(Kprobe::at("conformance_add").pre(move |_| slot.take())));
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(call!(conformance_mul(6, 7)), 42);
    // The next call of the registry removes what the handler could not.
    drop(outer);
    equal!(text(probes, "conformance_mul"), before);
    equal!(call!(conformance_mul(6, 7)), 42);
    Ok(())
}
