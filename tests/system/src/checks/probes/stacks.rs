//! Stacks that change under calls: a "current" that changes before or after the stack does, and interrupts
//! and traps that run on stacks of their own (RET_11).

use super::super::skip;
use super::tasks::yielding_triple;
use super::{Counter, faults, kinds, register, tasks, without_interrupts};
use crate::arch::{Backend, Ipi, Machine, Native};
use crate::host::{Kernel, Named, PROBES, name_tasks};
use crate::{cpu, stacks, targets, task, trap};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use probe_core::{Kretprobe, Probe, Switch};

/// Returns `a * 3`, `depth` calls deep.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn nested_triple(a: usize, depth: usize) -> usize {
    if depth > 0 {
        return core::hint::black_box(nested_triple(a, depth - 1));
    }
    core::hint::black_box(a) * 3
}

/// A return probe on the function `name`, and how many returns it has seen.
fn following(name: &'static str) -> (Probe<Kernel>, Counter) {
    let returns = Counter::default();
    let counted = returns.clone();
    let probe = Kretprobe::<Backend>::at(name).max_active(64).entry(|call| call.argument(0));
    (register(probe.exit(move |_, _| counted.rise())), returns)
}

/// In each of several tasks `body(a)`, 20 times, which has to hold; then `check`, while the tasks are there
/// still: a call that an end cuts off, and that is on no list, would keep its instance.
fn in_tasks(body: fn(usize) -> bool, check: impl FnOnce()) {
    let (wrong, done, checked) = (Counter::default(), Counter::default(), Counter::default());
    let count = cpu::online().count() + 3;
    let tasks: Vec<_> = (1..=count)
        .map(|a| {
            let (wrong, done, checked) = (wrong.clone(), done.clone(), checked.clone());
            task::spawn("caller", move || {
                let failed = (0..20).filter(|_| !body(a)).count();
                (0..failed).for_each(|_| wrong.rise());
                done.rise();
                while checked.get() == 0 {
                    task::yield_now();
                }
            })
        })
        .collect();
    while done.get() < count {
        task::yield_now();
    }
    assert_eq!(wrong.get(), 0);
    check();
    checked.rise();
    tasks.iter().for_each(|task| task.join());
}

/// Calls are followed while the stack changes under them, and while `current` names the other stack's owner.
pub(super) fn switched_stacks(is_late: bool) {
    let (in_switch, switched) = following("in_switch");
    let (switches, came_back) = following("switch_task");
    let (yielding, returned) = following("yielding_triple");
    without_interrupts(|| task::LATE_CURRENT.store(is_late, SeqCst));
    let check = move || {
        task::LATE_CURRENT.store(false, SeqCst);
        let counters = yielding.counters();
        assert_eq!((counters.hits as usize, counters.abandoned), (returned.get(), 0));
        assert!(counters.hits >= 400);
        // In this order: others go on meanwhile.
        let back = came_back.get();
        let gone = switches.counters();
        assert!(back > 0 && back <= gone.hits as usize, "{back} of {}", gone.hits);
        // Nobody else runs while these are counted.
        if cpu::online().count() == 1 {
            let seen = without_interrupts(|| (in_switch.counters(), switched.get()));
            assert_eq!((seen.0.hits as usize, seen.0.abandoned), (seen.1, 0));
        }
        drop((in_switch, switches, yielding));
    };
    in_tasks(|a| yielding_triple(a, 4) == a * 3, check);
}

/// Breakpoint traps come on stacks of their own (x86-64's IST), and nest there: what else is checked holds.
pub(super) fn own_trap_stacks() {
    if !Native::own_trap_stacks(true) {
        return skip("breakpoint traps come on the interrupted stack");
    }
    for check in [
        kinds::self_test,
        kinds::kprobe_fires,
        kinds::emulated,
        kinds::kretprobe_fires,
        kinds::jprobe_fires,
        kinds::all_kinds,
        faults::fault_in_step,
        faults::nesting,
        tasks::switches_in_calls,
        || interrupt_stacks(Named::Stack, false),
    ] {
        check();
    }
    Native::own_trap_stacks(false);
}

/// How often an interrupt's stack was called on, and how often that went wrong.
static CAME: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);

extern "C" fn call_in_interrupt() {
    CAME.fetch_add(1, SeqCst);
    let is_right = nested_triple(5, 3) == 15 && nested_triple(6, 0) == 18;
    WRONG.fetch_add(usize::from(!is_right), SeqCst);
}

/// Has an interrupt come to this CPU while a followed call returns; then calls what interrupts call.
fn interrupted_returns(a: usize) -> bool {
    let interrupts = Native::disable_interrupts();
    Native::send_ipi(Native::this_cpu().number, Ipi::Reschedule);
    let is_right = targets::enable(a) == a;
    cpu::restore(interrupts);
    is_right && nested_triple(a, 4) == a * 3 && yielding_triple(a, 1) == a * 3
}

/// Interrupts run on stacks of their own, as `named` says of them, and call there what the interrupted task
/// is in, at the moment when it returns, too: every call returns, and none is taken for one that was left.
pub(super) fn interrupt_stacks(named: Named, by_jumps: bool) {
    [&CAME, &WRONG].iter().for_each(|count| count.store(0, SeqCst));
    PROBES.jumps().set_automatic(by_jumps.into());
    let probes = ["nested_triple", "target_enable", "yielding_triple"].map(following);
    PROBES.jumps().set_automatic(Switch::Off);
    name_tasks(named);
    trap::set_tick_hook(Some(|| stacks::run(call_in_interrupt)));
    in_tasks(interrupted_returns, || trap::set_tick_hook(None));
    cpu::RENDEZVOUS.synchronise();
    name_tasks(Named::Running);
    assert!(CAME.load(SeqCst) >= 20, "{} interrupts", CAME.load(SeqCst));
    assert_eq!(WRONG.load(SeqCst), 0);
    for (probe, returns) in &probes {
        let counters = probe.counters();
        let seen = (counters.hits as usize, counters.missed_pool, counters.abandoned);
        assert_eq!(seen, (returns.get(), 0, 0));
    }
    drop(probes);
}
