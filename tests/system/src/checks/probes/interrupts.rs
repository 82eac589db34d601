//! Probes and interrupts: in their handlers, between hits, and what handlers of probes may be interrupted by.

use super::{Counter, counting, list, register, without_interrupts};
use crate::arch::{Backend, Interrupts, Machine, Native};
use crate::host::PROBES;
use crate::{cpu, targets, task};
use core::sync::atomic::Ordering::SeqCst;
use probe_core::{Kprobe, Kretprobe};

pub(super) fn interrupt_handler() {
    let (probe, before, after) = counting("on_timer_tick");
    while before.get() < 3 {
        Native::relax();
    }
    drop(probe);
    // No hit of this CPU is half done: the timer that was interrupted has ended. Another CPU may have been between the two
    // handlers when the probe went.
    assert!(before.get() - after.get() < cpu::online().count());
}

pub(super) fn interrupts_during_hits() {
    assert_eq!(interrupt_hits(), 0);
}

pub(super) fn interrupts_during_hits_by_jumps() {
    PROBES.set_optimising(true);
    // An interrupt may come in the middle of a hit: its handler's own hits are missed then, never the function's.
    interrupt_hits();
    PROBES.set_optimising(false);
}

/// Calls a function with pre and post handlers until several ticks of the timer, which is probed as well, have come. How
/// many hits of the timer's were missed.
fn interrupt_hits() -> u64 {
    let ticks = || cpu::online().map(|cpu| cpu.timer_ticks.load(SeqCst)).sum::<usize>();
    let (probe, before, after) = counting("target_plain");
    let (in_interrupt, in_tick, _) = counting("on_timer_tick");
    let start = ticks();
    let mut calls = 0;
    while ticks() < start + 5 {
        assert_eq!(targets::plain(calls), calls + 1);
        calls += 1;
    }
    assert_eq!([before.get(), after.get()], [calls; 2]);
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_nested), (calls as u64, 0));
    let missed = in_interrupt.counters().missed_nested;
    drop((probe, in_interrupt));
    assert!(in_tick.get() as u64 + missed >= 4);
    missed
}

pub(super) fn interrupt_state() {
    let (probe, plain_before, plain_after) = counting("target_plain");
    let (jump, jump_before, jump_after) = counting("target_jump");
    let both = || {
        assert_eq!(targets::plain(1), 2);
        assert_eq!(targets::jump(1), 2);
        task::interrupts()
    };
    assert_eq!(both(), Interrupts::Enabled);
    assert_eq!(without_interrupts(both), Interrupts::Disabled);
    assert_eq!(both(), Interrupts::Enabled);
    let counts = [plain_before, plain_after, jump_before, jump_after].map(|counter| counter.get());
    assert_eq!(counts, [3; 4]);
    drop((probe, jump));
}

pub(super) fn handlers_are_pinned() {
    let seen = Counter::default();
    let (s, t, u) = (seen.clone(), seen.clone(), seen.clone());
    let pinned = |counter: &Counter| {
        let is_pinned = task::interrupts() == Interrupts::Disabled || !task::is_preemptible();
        counter.0.fetch_add(usize::from(is_pinned), SeqCst);
    };
    let probe =
        register(Kprobe::<Backend>::at("target_plain").pre(move |_| pinned(&s)).post(move |_| pinned(&t)));
    let exit = register(Kretprobe::<Backend>::on("target_plain").exit(move |_, ()| pinned(&u)));
    targets::plain(1);
    assert_eq!(seen.get(), 3);
    assert!(task::is_preemptible());
    drop((probe, exit));
}

pub(super) fn handlers_of_jumps_are_pinned() {
    let seen = Counter::default();
    let (s, t, u) = (seen.clone(), seen.clone(), seen.clone());
    let pinned = |counter: &Counter| counter.set(counter.get() + usize::from(!task::is_preemptible()));
    PROBES.set_optimising(true);
    let probe =
        register(Kprobe::<Backend>::at("target_plain").pre(move |_| pinned(&s)).post(move |_| pinned(&u)));
    let exit = register(Kretprobe::<Backend>::on("target_plain").exit(move |_, ()| pinned(&t)));
    PROBES.set_optimising(false);
    assert!(list().lines().any(|line| line.contains("[OPTIMIZED]")), "{}", list());
    assert_eq!(targets::plain(1), 2);
    assert_eq!(seen.get(), 3);
    assert!(task::is_preemptible());
    assert_eq!(task::interrupts(), Interrupts::Enabled);
    assert_eq!(without_interrupts(|| (targets::plain(1), task::interrupts())), (2, Interrupts::Disabled));
    assert_eq!(seen.get(), 6);
    drop((probe, exit));
}
