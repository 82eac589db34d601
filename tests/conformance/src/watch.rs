//! Watchpoints. The contract has no chapter on them: they keep what it says of kprobes, as each case's name
//! tells.
//!
//! Where the host has no such power, all cases but the one about its answer are skipped.

use crate::check::{Outcome, equal, ok, refused, that};
use crate::{Case, Ended, Suite};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use probe_core::error::Errno;
use probe_core::files::Viewer;
use probe_core::host::Host;
use probe_core::limits::MAX_WATCHPOINTS;
use probe_core::{CodeAddr, Kprobe, Place, Probes, Watch, Watchpoint};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        watch_without_the_power_it_is_eopnotsupp_with_a_reason,
        watch_writes_fire_and_reads_do_not,
        watch_reads_and_writes_fire,
        watch_other_memory_does_not_fire,
        watch_every_context_is_watched,
        watch_ctl_1_enable_and_disable_are_idempotent,
        watch_ctl_2_the_switch_disarms_and_rearms,
        watch_ctl_3_the_list_has_a_line,
        watch_ctl_5_memory_that_goes_takes_its_watchpoints_along,
        watch_reg_8_registers_run_out_with_enospc,
        watch_reg_6_what_the_processor_lacks_is_einval,
        watch_reg_18_not_from_a_handler,
        watch_hit_3_the_pc_is_in_the_programs_text,
        watch_hit_6_a_handlers_references_do_not_fire,
    ]
}

/// The memory that is watched, away from everything else.
#[repr(align(64))]
struct Cells([AtomicUsize; MAX_WATCHPOINTS + 1]);

static CELLS: Cells = Cells([const { AtomicUsize::new(0) }; MAX_WATCHPOINTS + 1]);

fn cell(index: usize) -> (&'static AtomicUsize, usize) {
    let cell = &CELLS.0[index];
    (cell, core::ptr::from_ref(cell).addr())
}

const WORD: usize = size_of::<usize>();

/// Stores `value` in `to`: a function of its own, so that it can be probed.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn conformance_store(to: &AtomicUsize, value: usize) {
    let to = to.as_ptr();
    // Not through the atomic, whose function may be another one.
    // SAFETY: a cell is used by one context at a time.
    unsafe { *to = value };
}

/// Loads `from`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn conformance_load(from: &AtomicUsize) -> usize {
    let from = from.as_ptr();
    // SAFETY: as above.
    unsafe { *from }
}

/// Calls through a pointer that the compiler cannot see through.
fn store(to: &AtomicUsize, value: usize) {
    core::hint::black_box(conformance_store as extern "C" fn(&AtomicUsize, usize))(to, value);
}

fn load(from: &AtomicUsize) -> usize {
    core::hint::black_box(conformance_load as extern "C" fn(&AtomicUsize) -> usize)(from)
}

/// Ends a case where the host has no watchpoints.
macro_rules! needs_power {
    ($probes:expr) => {
        if let Err(reason) = $probes.host().watchpoints() {
            return Err($crate::Ended::Skipped(reason.sentence));
        }
    };
}

fn watch_without_the_power_it_is_eopnotsupp_with_a_reason<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    let Err(reason) = probes.host().watchpoints() else {
        return Err(Ended::Skipped("the host has the power"));
    };
    let Err(error) = probes.watch(Watchpoint::at(cell(0).1, WORD)) else {
        that!(false, "registered without the power");
        return Ok(());
    };
    equal!((error.errno(), error.code()), (reason.errno, reason.code));
    that!(alloc::format!("{error}").contains(reason.sentence), "{error} does not say why");
    store(cell(0).0, 1);
    Ok(())
}

fn watch_writes_fire_and_reads_do_not<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (cell, at) = cell(0);
    let seen = Arc::new(AtomicUsize::new(0));
    let s = seen.clone();
    let watch = ok!(probes.watch(Watchpoint::at(at, WORD).write().then(move |hit| {
        // After the write.
        s.store(hit.value().unwrap_or(0), Relaxed);
    })));
    store(cell, 7);
    equal!(seen.load(Relaxed), 7);
    equal!(load(cell), 7);
    equal!(watch.counters().hits, 1);
    store(cell, 8);
    equal!((seen.load(Relaxed), watch.counters().hits), (8, 2));
    drop(watch);
    store(cell, 9);
    equal!(seen.load(Relaxed), 8);
    Ok(())
}

fn watch_reads_and_writes_fire<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (cell, at) = cell(0);
    let watch = ok!(probes.watch(Watchpoint::at(at, WORD).read_write()));
    store(cell, 3);
    equal!(watch.counters().hits, 1);
    equal!(load(cell), 3);
    equal!(watch.counters().hits, 2);
    Ok(())
}

fn watch_other_memory_does_not_fire<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let byte = ok!(probes.watch(Watchpoint::at(cell(1).1, 1).read_write()));
    store(cell(0).0, 1);
    store(cell(2).0, 1);
    store(cell(3).0, 4);
    equal!(load(cell(3).0), 4);
    equal!(byte.counters().hits, 0);
    store(cell(1).0, 1);
    equal!(byte.counters().hits, 1);
    Ok(())
}

fn watch_every_context_is_watched<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    crate::needs_contexts::<S>()?;
    needs_power!(probes);
    let watches: Vec<_> =
        ok!((0..3).map(|i| probes.watch(Watchpoint::at(cell(i).1, WORD))).collect::<Result<_, _>>());
    S::run_on_contexts(3, &|number| {
        for value in 0..50 {
            store(cell(number).0, value);
        }
    });
    for watch in &watches {
        equal!(watch.counters().hits, 50);
    }
    Ok(())
}

fn watch_ctl_1_enable_and_disable_are_idempotent<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (cell, at) = cell(0);
    let watch = ok!(probes.watch(Watchpoint::at(at, WORD).disabled()));
    store(cell, 1);
    equal!(watch.counters().hits, 0);
    for _ in 0..3 {
        ok!(watch.enable());
    }
    store(cell, 2);
    equal!(watch.counters().hits, 1);
    for _ in 0..3 {
        ok!(watch.disable());
    }
    store(cell, 3);
    equal!((watch.counters().hits, watch.is_enabled()), (1, false));
    Ok(())
}

fn watch_ctl_2_the_switch_disarms_and_rearms<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (cell, at) = cell(0);
    let watch = ok!(probes.watch(Watchpoint::at(at, WORD)));
    ok!(probes.files().write_enabled("0"));
    store(cell, 1);
    equal!(watch.counters().hits, 0);
    ok!(probes.files().write_enabled("1"));
    store(cell, 2);
    equal!(watch.counters().hits, 1);
    Ok(())
}

fn list<H: Host>(probes: &Probes<H>) -> String {
    let mut listing = String::new();
    let _ = probes.files().list(&mut listing, Viewer::Privileged);
    listing
}

fn watch_ctl_3_the_list_has_a_line<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (_, at) = cell(0);
    let watch = ok!(probes.watch(Watchpoint::at(at, WORD)));
    let digits = 2 * WORD;
    let listing = list(probes);
    that!(listing.starts_with(&alloc::format!("{at:0digits$x}  w  ")), "{listing}");
    equal!(listing.lines().count(), 1);
    ok!(watch.disable());
    that!(list(probes).ends_with("[DISABLED]\n"), "{}", list(probes));
    Ok(())
}

fn watch_ctl_5_memory_that_goes_takes_its_watchpoints_along<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    needs_power!(probes);
    let (cell, at) = cell(0);
    let watch = ok!(probes.watch(Watchpoint::at(at, WORD)));
    probes.events().text_going(CodeAddr::new(at), CodeAddr::new(at + WORD));
    that!(watch.is_gone(), "it is not gone");
    that!(list(probes).ends_with("[GONE]\n"), "{}", list(probes));
    refused!(watch.enable(), EINVAL);
    store(cell, 1);
    equal!(watch.counters().hits, 0);
    Ok(())
}

fn watch_reg_8_registers_run_out_with_enospc<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let mut watches = Vec::new();
    let error = loop {
        that!(watches.len() <= MAX_WATCHPOINTS, "registers do not run out");
        match probes.watch(Watchpoint::at(cell(watches.len()).1, WORD)) {
            Ok(watch) => watches.push(watch),
            Err(error) => break error,
        }
    };
    equal!(error.errno(), Errno::ENOSPC, "{error}");
    let count = alloc::format!("{}", watches.len());
    that!(alloc::format!("{error}").contains(&count), "{error} does not say that there are {count}");
    equal!(list(probes).lines().count(), watches.len());
    let all = |watches: &[Watch<S::Host>]| {
        (0..watches.len()).for_each(|index| store(cell(index).0, index));
        watches.iter().map(|watch| watch.counters().hits).collect::<Vec<_>>()
    };
    equal!(all(&watches), alloc::vec![1; watches.len()]);
    // One that is given back can be had again.
    let last = watches.len() - 1;
    watches.pop();
    watches.push(ok!(probes.watch(Watchpoint::at(cell(last).1, WORD))));
    let mut hits = all(&watches);
    equal!((hits.pop(), hits), (Some(1), alloc::vec![2; last]));
    Ok(())
}

fn watch_reg_6_what_the_processor_lacks_is_einval<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (_, at) = cell(0);
    for (at, len_bytes) in [(at, 0), (at, 3), (at + 1, 2), (at + 2, 4), (at, 1 << 20)] {
        refused!(probes.watch(Watchpoint::at(at, len_bytes)), EINVAL);
    }
    equal!(list(probes), "");
    Ok(())
}

fn watch_reg_18_not_from_a_handler<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let errno = Arc::new(AtomicUsize::new(0));
    let e = errno.clone();
    let at = cell(1).1;
    let probe = ok!(probes.register(Kprobe::at("conformance_load").pre(move |_| {
        let refused = probes.watch(Watchpoint::at(at, WORD)).err();
        e.store(refused.map_or(0, |error| error.errno().as_i32() as usize), Relaxed);
    })));
    load(cell(0).0);
    equal!(errno.load(Relaxed), Errno::EBUSY.as_i32() as usize);
    drop(probe);
    Ok(())
}

fn watch_hit_3_the_pc_is_in_the_programs_text<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (cell, at) = cell(0);
    let (start, len) = crate::reg::extent(probes, "conformance_store");
    let seen = Arc::new(AtomicUsize::new(0));
    let s = seen.clone();
    let watch =
        ok!(probes.watch(Watchpoint::at(at, WORD).then(move |hit| s.store(hit.pc().as_usize(), Relaxed))));
    store(cell, 1);
    let bare = seen.load(Relaxed);
    that!((start.as_usize()..=start.as_usize() + len).contains(&bare), "{bare:#x} is outside the function");
    // With probes on all its instructions the store is made in a slot: boosted, then stepped.
    for has_post in [false, true] {
        let mut planted = Vec::new();
        for offset in 0..len {
            let kprobe = Kprobe::at(Place::symbol("conformance_store").offset(offset as isize));
            let kprobe = if has_post { kprobe.post(|_| ()) } else { kprobe };
            planted.extend(probes.register(kprobe));
        }
        that!(!planted.is_empty(), "nothing in the function can be probed");
        seen.store(0, Relaxed);
        store(cell, 2);
        equal!(seen.load(Relaxed), bare, "with post handlers: {has_post}");
        equal!(cell.load(Relaxed), 2);
    }
    equal!(watch.counters().hits, 3);
    Ok(())
}

fn watch_hit_6_a_handlers_references_do_not_fire<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    needs_power!(probes);
    let (cell, at) = cell(0);
    let watch = ok!(probes.watch(Watchpoint::at(at, WORD)));
    let probe = ok!(probes.register(Kprobe::at("conformance_load").pre(move |_| cell.store(5, Relaxed))));
    load(self::cell(1).0);
    equal!(cell.load(Relaxed), 5);
    equal!(watch.counters().hits, 0);
    // Counted, where the processor takes debug exceptions in a trap handler.
    that!(watch.counters().missed_nested <= 1, "{:?}", watch.counters());
    store(cell, 6);
    equal!(watch.counters().hits, 1);
    drop(probe);
    Ok(())
}
