//! Return probes: RET_1 … RET_10.

use crate::check::{Outcome, equal, ok, that};
use crate::hit::cell;
use crate::targets::call;
use crate::{Case, Suite};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use probe_core::host::Host;
use probe_core::{Kprobe, Kretprobe, Probes};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        ret_1_entry_and_exit_run_once_for_each_call,
        ret_1_a_declined_call_is_vetoed,
        ret_2_an_empty_pool_misses,
        ret_3_the_pool_has_max_active_instances_and_a_high_water_mark,
        ret_4_the_handler_sees_value_data_and_return_address,
        ret_4_a_changed_return_value_reaches_the_caller,
        ret_5_recursion_returns_innermost_first,
        ret_5_nested_functions_and_tail_calls,
        ret_5_several_kretprobes_on_one_function,
        ret_6_unregistering_while_a_call_is_in_flight,
        ret_7_contexts_return_together,
        ret_8_the_real_return_address_can_be_asked_for,
        ret_9_kprobe_jprobe_and_kretprobe_on_one_function,
    ]
}

fn ret_1_entry_and_exit_run_once_for_each_call<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (entries, in_entry) = cell();
    let (exits, in_exit) = cell();
    let probe = ok!(probes.register(
        Kretprobe::at("conformance_add")
            .entry(move |_| {
                in_entry.fetch_add(1, Relaxed);
                Some(())
            })
            .exit(move |_, ()| {
                in_exit.fetch_add(1, Relaxed);
            })
    ));
    for n in 0..20 {
        equal!(call!(conformance_add(n, 1)), n + 1);
    }
    equal!((entries.load(Relaxed), exits.load(Relaxed)), (20, 20));
    equal!(probe.counters().hits, 20);
    Ok(())
}

fn ret_1_a_declined_call_is_vetoed<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (exits, in_exit) = cell();
    let probe = ok!(probes.register(
        Kretprobe::at("conformance_add")
            .entry(|call| (call.argument(0).unwrap_or(0) % 2 == 0).then_some(()))
            .exit(move |_, ()| {
                in_exit.fetch_add(1, Relaxed);
            })
    ));
    for n in 0..10 {
        equal!(call!(conformance_add(n, 1)), n + 1);
    }
    equal!(exits.load(Relaxed), 5);
    equal!(probe.counters().vetoed, 5);
    equal!(probe.counters().missed_pool, 0);
    Ok(())
}

fn ret_2_an_empty_pool_misses<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (entries, in_entry) = cell();
    let (exits, in_exit) = cell();
    let probe = ok!(probes.register(
        Kretprobe::at("conformance_factorial")
            .max_active(3)
            .entry(move |_| {
                in_entry.fetch_add(1, Relaxed);
                Some(())
            })
            .exit(move |_, ()| {
                in_exit.fetch_add(1, Relaxed);
            })
    ));
    equal!(call!(conformance_factorial(10)), 3_628_800);
    equal!((entries.load(Relaxed), exits.load(Relaxed)), (3, 3));
    equal!(probe.counters().missed_pool, 7);
    Ok(())
}

fn ret_3_the_pool_has_max_active_instances_and_a_high_water_mark<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    let given = ok!(probes.register(Kretprobe::at("conformance_factorial").max_active(32)));
    equal!(call!(conformance_factorial(6)), 720);
    equal!(given.counters().pool_high_water, 6);
    drop(given);
    let default = ok!(probes.register(Kretprobe::at("conformance_factorial")));
    let depth = 10.max(2 * probes.host().parallelism());
    let _ = call!(conformance_factorial(depth));
    equal!(default.counters().missed_pool, 0);
    let _ = call!(conformance_factorial(depth + 1));
    equal!(default.counters().missed_pool, 1);
    Ok(())
}

fn ret_4_the_handler_sees_value_data_and_return_address<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    let (value, store_value) = cell();
    let (data, store_data) = cell();
    let (same, store_same) = cell();
    let _probe = ok!(probes.register(
        Kretprobe::at("conformance_add")
            .entry(|call| {
                let stored = (call.argument(0)?, call.argument(1)?, call.return_address());
                Some(stored)
            })
            .exit(move |ret, (a, b, address)| {
                store_value.store(ret.value(), Relaxed);
                store_data.store(a * 1000 + b, Relaxed);
                store_same.store(usize::from(address == ret.return_address()), Relaxed);
            })
    ));
    equal!(call!(conformance_add(12, 34)), 46);
    equal!((value.load(Relaxed), data.load(Relaxed), same.load(Relaxed)), (46, 12_034, 1));
    Ok(())
}

fn ret_4_a_changed_return_value_reaches_the_caller<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let probe = ok!(probes.register(Kretprobe::at("conformance_add").exit(|ret, ()| {
        let value = ret.value();
        ret.set_value(value + 1000);
    })));
    equal!(call!(conformance_add(1, 2)), 1003);
    drop(probe);
    equal!(call!(conformance_add(1, 2)), 3);
    Ok(())
}

fn ret_5_recursion_returns_innermost_first<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (order, store) = cell();
    let _probe = ok!(probes.register(
        Kretprobe::at("conformance_factorial").max_active(20).entry(|call| call.argument(0)).exit(
            move |_, n: usize| {
                let seen = store.load(Relaxed);
                store.store(seen * 10 + n, Relaxed);
            }
        )
    ));
    equal!(call!(conformance_factorial(6)), 720);
    equal!(order.load(Relaxed), 123_456);
    Ok(())
}

fn ret_5_nested_functions_and_tail_calls<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (order, _) = cell();
    let mut held = Vec::new();
    for (digit, name) in (1..).zip(["conformance_outer", "conformance_inner", "conformance_tail"]) {
        let order = order.clone();
        held.push(ok!(probes.register(Kretprobe::at(name).exit(move |_, ()| {
            let seen = order.load(Relaxed);
            order.store(seen * 10 + digit, Relaxed);
        }))));
    }
    equal!(call!(conformance_outer(3)), 140);
    equal!(order.swap(0, Relaxed), 21);
    equal!(call!(conformance_tail(3)), 30);
    // Where the compiler inlines instead of jumping, only the outer one returns.
    let seen = order.load(Relaxed);
    that!(seen == 23 || seen == 3, "the return handlers ran as {seen}");
    Ok(())
}

fn ret_5_several_kretprobes_on_one_function<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (count, _) = cell();
    let mut held = Vec::new();
    for _ in 0..3 {
        let count = count.clone();
        held.push(ok!(probes.register(Kretprobe::at("conformance_inner").exit(move |ret, ()| {
            count.fetch_add(ret.value(), Relaxed);
        }))));
    }
    equal!(call!(conformance_inner(7)), 70);
    equal!(count.load(Relaxed), 210);
    Ok(())
}

fn ret_6_unregistering_while_a_call_is_in_flight<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    crate::needs_contexts::<S>()?;
    use core::sync::atomic::AtomicUsize;
    // conformance_outer is in flight while conformance_inner's entry tells the other context to unregister.
    static PHASE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn waiting(n: usize) -> usize {
        PHASE.store(1, Relaxed);
        while PHASE.load(Relaxed) != 2 {
            core::hint::spin_loop();
        }
        n
    }
    PHASE.store(0, Relaxed);
    let (exits, in_exit) = cell();
    let probe = ok!(probes.register(Kretprobe::at("conformance_through").exit(move |_, ()| {
        in_exit.fetch_add(1, Relaxed);
    })));
    let slot = spin_slot(probe);
    let (result, store) = cell();
    S::run_on_contexts(2, &|context| {
        if context == 0 {
            store.store(
                call!(conformance_through(waiting as extern "C" fn(usize) -> usize as usize, 41)),
                Relaxed,
            );
        } else {
            while PHASE.load(Relaxed) != 1 {
                probes.host().relax();
            }
            slot.take();
            PHASE.store(2, Relaxed);
        }
    });
    equal!(result.load(Relaxed), 42);
    equal!(exits.load(Relaxed), 0);
    Ok(())
}

/// A value that one context puts and another takes.
pub(crate) struct SpinSlot<T>(core::sync::atomic::AtomicPtr<T>);

/// Puts a value into a slot of its own.
pub(crate) fn spin_slot<T: Send>(value: T) -> SpinSlot<T> {
    SpinSlot(core::sync::atomic::AtomicPtr::new(alloc::boxed::Box::into_raw(alloc::boxed::Box::new(value))))
}

impl<T> SpinSlot<T> {
    /// Takes the value out and drops it.
    pub(crate) fn take(&self) {
        let value = self.0.swap(core::ptr::null_mut(), core::sync::atomic::Ordering::AcqRel);
        if !value.is_null() {
            // SAFETY: the pointer came from `Box::into_raw`, and the swap gave it to this caller alone.
            drop(unsafe { alloc::boxed::Box::from_raw(value) });
        }
    }
}

impl<T> Drop for SpinSlot<T> {
    fn drop(&mut self) {
        self.take();
    }
}

fn ret_7_contexts_return_together<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    crate::needs_contexts::<S>()?;
    const CONTEXTS: usize = 4;
    const CALLS: usize = 300;
    let (exits, in_exit) = cell();
    let probe = ok!(probes.register(
        Kretprobe::at("conformance_add").max_active(64).entry(|call| call.argument(0)).exit(
            move |ret, n: usize| {
                in_exit.fetch_add(usize::from(ret.value() == n + 5), Relaxed);
            }
        )
    ));
    let (wrong, wrong_in) = cell();
    S::run_on_contexts(CONTEXTS, &|context| {
        for n in 0..CALLS {
            if call!(conformance_add(n * CONTEXTS + context, 5)) != n * CONTEXTS + context + 5 {
                wrong_in.fetch_add(1, Relaxed);
            }
        }
    });
    equal!(wrong.load(Relaxed), 0);
    equal!(exits.load(Relaxed), CONTEXTS * CALLS);
    equal!((probe.counters().hits, probe.counters().missed_pool), ((CONTEXTS * CALLS) as u64, 0));
    Ok(())
}

fn ret_8_the_real_return_address_can_be_asked_for<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (real, store_real) = cell();
    let (seen, store_seen) = cell();
    let _outer = ok!(probes.register(Kretprobe::at("conformance_outer").entry(move |call| {
        store_real.store(call.return_address().as_usize(), Relaxed);
        Some(())
    })));
    equal!(call!(conformance_outer(1)), 120);
    let plain = real.load(Relaxed);
    // A second kretprobe on the same function finds the first one's stub and must see through it.
    let _second = ok!(probes.register(Kretprobe::at("conformance_outer").entry(move |call| {
        store_seen.store(call.return_address().as_usize(), Relaxed);
        Some(())
    })));
    equal!(call!(conformance_outer(1)), 120);
    that!(seen.load(Relaxed) != 0 && plain != 0, "a handler saw no return address");
    that!(
        probes.real_return_address(seen.load(Relaxed).into()).is_none(),
        "the handler saw a stub instead of the real return address"
    );
    Ok(())
}

fn ret_9_kprobe_jprobe_and_kretprobe_on_one_function<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    use core::sync::atomic::AtomicUsize;
    static ORDER: AtomicUsize = AtomicUsize::new(0);
    fn note(digit: usize) {
        ORDER.store(ORDER.load(Relaxed) * 10 + digit, Relaxed);
    }
    extern "C" fn handler(_: usize, _: usize) -> usize {
        note(2);
        0
    }
    ORDER.store(0, Relaxed);
    let _jprobe = ok!(probes.register(crate::jmp::two("conformance_add", handler)));
    let _kretprobe = ok!(probes.register(Kretprobe::at("conformance_add").exit(|ret, ()| {
        note(if ret.value() == 42 { 3 } else { 9 });
    })));
    let _kprobe = ok!(probes.register(Kprobe::at("conformance_add").pre(|_| note(1))));
    equal!(call!(conformance_add(40, 2)), 42);
    equal!(ORDER.load(Relaxed), 123);
    Ok(())
}
