//! Calls across context switches, tasks that are killed, CPUs that hit while others register.

use super::{Counter, counting, label, place, register};
use crate::arch::{Backend, Machine, Native};
use crate::host::{self, Named, PROBES};
use crate::memory::Mapped;
use crate::{cmdline, cpu, targets, task};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use probe_core::{Kprobe, Kretprobe, Switch};

/// Yields, so that its callers' calls are in flight through context switches; returns `a * 3`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn yielding_triple(a: usize, depth: usize) -> usize {
    task::yield_now();
    if depth > 0 {
        return core::hint::black_box(yielding_triple(a, depth - 1));
    }
    core::hint::black_box(a) * 3
}

pub(super) fn switches_in_calls() {
    let probe = register(
        Kretprobe::<Backend>::at("yielding_triple")
            .max_active(64)
            .entry(|call| call.argument(0))
            .exit(|ret, a| ret.set_value(ret.value() + a)),
    );
    let wrong = Counter::default();
    let tasks: Vec<_> = (1..9)
        .map(|a| {
            let wrong = wrong.clone();
            task::spawn("caller", move || {
                for _ in 0..20 {
                    // Five calls deep, each of which adds `a`.
                    if yielding_triple(a, 4) != a * 8 {
                        wrong.rise();
                    }
                }
            })
        })
        .collect();
    tasks.iter().for_each(|task| task.join());
    assert_eq!(wrong.get(), 0);
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool, counters.abandoned), (8 * 20 * 5, 0, 0));
    drop(probe);
}

pub(super) fn killed_in_call() {
    let probe = register(
        Kretprobe::<Backend>::at("yielding_triple")
            .max_active(1)
            .entry(|call| call.argument(0))
            .exit(|_, _| ()),
    );
    let victim = task::spawn("victim", || {
        yielding_triple(1, usize::MAX);
    });
    while probe.counters().missed_pool == 0 {
        task::yield_now();
    }
    assert_eq!(probe.counters().hits, 1);
    victim.kill();
    victim.join();
    // It is another CPU that may give the instance back, after it has left the task's stack.
    let missed = || probe.counters().missed_pool;
    let mut before = missed();
    yielding_triple(2, 0);
    for _ in 0..1000 {
        if missed() == before {
            break;
        }
        before = missed();
        task::yield_now();
        yielding_triple(2, 0);
    }
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.abandoned), (2, 1));
    drop(probe);
}

/// The host says of every other call that another task makes it, and sometimes that nobody does.
pub(super) fn wrong_task() {
    let (entries, exits) = (Counter::default(), Counter::default());
    let (entered, left) = (entries.clone(), exits.clone());
    let probe = register(
        Kretprobe::<Backend>::at("yielding_triple")
            .max_active(64)
            .entry(move |_| {
                entered.rise();
                Some(())
            })
            .exit(move |_, ()| left.rise()),
    );
    let wrong = Counter::default();
    host::name_tasks(Named::Before);
    let tasks: Vec<_> = (1..5)
        .map(|a| {
            let wrong = wrong.clone();
            task::spawn("caller", move || {
                for _ in 0..20 {
                    if yielding_triple(a, 4) != a * 3 {
                        wrong.rise();
                    }
                }
            })
        })
        .collect();
    tasks.iter().for_each(|task| task.join());
    host::name_tasks(Named::Running);
    assert_eq!(wrong.get(), 0);
    // At worst a call is not followed, or counts as abandoned.
    let counters = probe.counters();
    assert_eq!(counters.hits as usize, entries.get());
    assert!(exits.get() > 0 && exits.get() <= entries.get(), "{} of {}", exits.get(), entries.get());
    // What was told right is followed as ever.
    let (entered, left) = (entries.get(), exits.get());
    assert_eq!(yielding_triple(2, 4), 6);
    assert_eq!((entries.get() - entered, exits.get() - left), (5, 5));
    drop(probe);
}

pub(super) fn registration_storm() {
    let (stable, before, after) = counting("target_plain");
    let stop = Arc::new(AtomicBool::new(false));
    let (calls, wrong) = (Counter::default(), Counter::default());
    let callers: Vec<_> = (0..cpu::online().count() + 1)
        .map(|_| {
            let (stop, calls, wrong) = (stop.clone(), calls.clone(), wrong.clone());
            task::spawn("caller", move || {
                while !stop.load(SeqCst) {
                    let n = calls.0.fetch_add(1, SeqCst);
                    if targets::plain(n) != n + 1 || targets::jump(n) != n + 1 || targets::call(n) != n + 2 {
                        wrong.rise();
                    }
                    Native::relax();
                }
            })
        })
        .collect();
    // Meanwhile somebody reads the page tables, over and over (SAFE_1).
    let looks = Counter::default();
    let watcher = {
        let (stop, looks) = (stop.clone(), looks.clone());
        task::spawn("watcher", move || {
            while !stop.load(SeqCst) {
                assert_eq!(Mapped::look().both, None);
                looks.rise();
                task::yield_now();
            }
        })
    };
    // Every patch stops all CPUs at a rendezvous; there a few rounds are contention enough.
    let rounds = if cmdline::value("rendezvous").is_some() { 8 } else { 60 };
    for round in 0..rounds {
        let (again, ..) = counting("target_plain");
        let jump = counting("target_jump");
        let exit = register(Kretprobe::<Backend>::at("target_call").exit(|_, ()| ()));
        let insn = register(Kprobe::<Backend>::at(place(label!(target_call_insn))).pre(|_| ()));
        if round % 2 == 0 {
            PROBES.switch(Switch::Off).expect("text can be written");
            PROBES.switch(Switch::On).expect("text can be written");
        }
        task::yield_now();
        drop((again, jump, exit, insn));
    }
    stop.store(true, SeqCst);
    callers.iter().for_each(|task| task.join());
    watcher.join();
    assert!(calls.get() > 0 && looks.get() > 0);
    assert_eq!(wrong.get(), 0);
    assert_eq!(before.get(), after.get());
    let counters = stable.counters();
    assert_eq!(counters.hits + counters.missed_nested, before.get() as u64);
    drop(stable);
}
