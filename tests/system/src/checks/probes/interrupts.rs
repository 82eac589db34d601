//! Probes and interrupts: in their handlers, between hits, and what handlers of probes may be interrupted by.

use super::{Counter, counting, lacks_jumps, list, register, without_interrupts};
use crate::arch::{Backend, Interrupts, Machine, Native};
use crate::host::PROBES;
use crate::{cpu, targets, task, trap};
use alloc::vec::Vec;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;
use probe_core::{Kprobe, Kretprobe, Switch};

pub(super) fn interrupt_handler() {
    let (probe, before, after) = counting("on_timer_tick");
    while before.get() < 3 {
        Native::relax();
    }
    drop(probe);
    // No hit of this CPU is half done: the timer that was interrupted has ended. Another CPU may have been
    // between the two handlers when the probe went.
    assert!(before.get() - after.get() < cpu::online().count());
}

pub(super) fn interrupts_during_hits() {
    assert_eq!(interrupt_hits(), 0);
}

pub(super) fn interrupts_during_hits_by_jumps() {
    PROBES.jumps().set_automatic(Switch::On);
    // An interrupt may come in the middle of a hit: its handler's own hits are missed then, never the
    // function's.
    interrupt_hits();
    PROBES.jumps().set_automatic(Switch::Off);
}

/// Calls a function with pre and post handlers until several ticks of the timer, which is probed as well,
/// have come. How many hits of the timer's were missed.
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

/// What an interrupt finds on its CPU: no active hit, the core or a handler, an instruction that handlers
/// wait for.
#[derive(Clone, Copy)]
enum Moment {
    Outside,
    Inside,
    Between,
}

/// How often an interrupt has come at each [`Moment`], and how many of its calls were wrong.
static CAME: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
static WRONG: AtomicUsize = AtomicUsize::new(0);

fn came(moment: Moment) -> usize {
    CAME[moment as usize].load(SeqCst)
}

/// Calls all that is probed; whether that did what it does without probes.
fn call_all(a: usize) {
    let is_right = targets::plain(a) == a + 1 && targets::jump(a) == a + 1 && targets::call(a) == a + 2;
    WRONG.fetch_add(usize::from(!is_right), SeqCst);
}

/// In the timer's interrupt: hits the places, one of which the interrupted context may be in the middle of.
fn hit_in_tick() {
    let context = &Native::this_cpu().probes;
    let state = || (context.is_inside(), context.depth());
    let before = state();
    let moment = match before {
        (true, _) => Moment::Inside,
        (false, 0) => Moment::Outside,
        (false, _) => Moment::Between,
    };
    CAME[moment as usize].fetch_add(1, SeqCst);
    call_all(7);
    WRONG.fetch_add(usize::from(state() != before), SeqCst);
}

/// Several tasks go through hits of every kind, and are preempted in them, until interrupts that hit the same
/// places have come at every moment there is. Each hit is counted once, as what it was.
pub(super) fn hits_in_the_middle_of_hits(by_jumps: bool) {
    if by_jumps && lacks_jumps() {
        return;
    }
    CAME.iter().chain([&WRONG]).for_each(|count| count.store(0, SeqCst));
    PROBES.jumps().set_automatic(by_jumps.into());
    let (plain, before, after) = counting("target_plain");
    let (jump, jump_before, jump_after) = counting("target_jump");
    let returns = Counter::default();
    let r = returns.clone();
    let exit = register(Kretprobe::<Backend>::at("target_call").max_active(64).exit(move |_, ()| r.rise()));
    PROBES.jumps().set_automatic(Switch::Off);
    // Of the plain one and of the call; on x86 the jump's function is too short.
    assert_eq!(list().matches("[OPTIMIZED]").count() >= 2, by_jumps, "{}", list());

    let is_enough = move || match by_jumps {
        true => [Moment::Inside, Moment::Between].iter().all(|moment| came(*moment) >= 3),
        // Interrupts are off from a trap to the end of its step.
        false => came(Moment::Outside) >= 20,
    };
    let calls = Counter::default();
    trap::set_tick_hook(Some(hit_in_tick));
    let tasks: Vec<_> = (0..cpu::online().count() + 1)
        .map(|_| {
            let calls = calls.clone();
            task::spawn("caller", move || {
                while !is_enough() {
                    calls.rise();
                    call_all(calls.get());
                }
            })
        })
        .collect();
    tasks.iter().for_each(|task| task.join());
    trap::set_tick_hook(None);
    // Another CPU's tick may be in the hook still.
    cpu::RENDEZVOUS.synchronise();

    assert_eq!(WRONG.load(SeqCst), 0);
    let missed = (came(Moment::Inside) + came(Moment::Between)) as u64;
    let all = (calls.get() + came(Moment::Outside)) as u64;
    // Each of them calls the plain one twice.
    for (probe, hits, missed) in [(&plain, 2 * all, 2 * missed), (&jump, all, missed), (&exit, all, missed)] {
        let counters = probe.counters();
        assert_eq!((counters.hits, counters.missed_nested, counters.missed_pool), (hits, missed, 0));
    }
    assert_eq!([before.get(), after.get()], [2 * all as usize; 2]);
    assert_eq!([jump_before.get(), jump_after.get(), returns.get()], [all as usize; 3]);
    drop((plain, jump, exit));
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
    let exit = register(Kretprobe::<Backend>::at("target_plain").exit(move |_, ()| pinned(&u)));
    targets::plain(1);
    assert_eq!(seen.get(), 3);
    assert!(task::is_preemptible());
    drop((probe, exit));
}

pub(super) fn handlers_of_jumps_are_pinned() {
    if lacks_jumps() {
        return;
    }
    let seen = Counter::default();
    let (s, t, u) = (seen.clone(), seen.clone(), seen.clone());
    let pinned = |counter: &Counter| counter.set(counter.get() + usize::from(!task::is_preemptible()));
    PROBES.jumps().set_automatic(Switch::On);
    let probe =
        register(Kprobe::<Backend>::at("target_plain").pre(move |_| pinned(&s)).post(move |_| pinned(&u)));
    let exit = register(Kretprobe::<Backend>::at("target_plain").exit(move |_, ()| pinned(&t)));
    PROBES.jumps().set_automatic(Switch::Off);
    assert!(list().lines().any(|line| line.contains("[OPTIMIZED]")), "{}", list());
    assert_eq!(targets::plain(1), 2);
    assert_eq!(seen.get(), 3);
    assert!(task::is_preemptible());
    assert_eq!(task::interrupts(), Interrupts::Enabled);
    assert_eq!(without_interrupts(|| (targets::plain(1), task::interrupts())), (2, Interrupts::Disabled));
    assert_eq!(seen.get(), 6);
    drop((probe, exit));
}
