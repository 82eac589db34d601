//! The registry beside hits of every kind: frames, code without a context, handlers that ask for something,
//! pools that grow, watchpoints.

use crate::machine::{NOWHERE, be_with, call, enter, finish, return_address, touch_watched};
use crate::ways::{Way, goes};
use crate::{Alone, K, Owned, R, context, model, owned_probe, place};
use probe_core::Watchpoint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// A post handler runs behind the instruction, which runs in the slot: a frame keeps both.
#[test]
fn reg_13_a_probe_goes_while_another_context_steps() {
    model(2, |machine| {
        let owned = Owned::new();
        goes(machine, Way::Traps, K::at(place(0)).post(move |_| owned.check()));
        machine.settle();
    });
}

/// Code that has no context counts its hit as missed, and is waited for.
#[test]
fn reg_13_a_probe_goes_while_code_without_a_context_calls() {
    model(2, |machine| {
        let probe = machine.register(owned_probe(0)).unwrap();
        let other = context(NOWHERE, move || {
            be_with(NOWHERE, 1);
            assert_eq!(call(machine), 5);
        });
        drop(probe);
        other.join().unwrap();
    });
}

/// An unwinder asks for a return address while the probe goes whose stub it is.
#[test]
fn ret_8_a_return_address_is_asked_for_while_its_probe_goes() {
    model(2, |machine| {
        let probe = machine.register(R::at("f").max_active(1)).unwrap();
        let held = enter(machine);
        let stub = return_address(machine, &held);
        assert_eq!(finish(machine, held), 5);
        let other = context(1, move || assert_eq!(machine.real_return_address(stub), None));
        drop(probe);
        other.join().unwrap();
    });
}

#[test]
fn reg_21_two_contexts_register_at_once() {
    model(2, |machine| {
        let other = context(1, move || {
            machine.register(owned_probe(0)).unwrap().leak();
        });
        machine.register(owned_probe(0)).unwrap().leak();
        other.join().unwrap();
        assert_eq!(call(machine), 5);
    });
}

/// What hits look at says in the end what the flag says.
#[test]
fn reg_18_a_handler_disables_a_probe_while_its_user_enables_it() {
    model(2, |machine| {
        let exits: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        let disables: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(true)));
        let probe = R::at("f").max_active(2).entry(|call| {
            if disables.swap(false, Relaxed) {
                call.disable();
            }
            Some(())
        });
        let probe = machine.register(probe.exit(move |_, ()| _ = exits.fetch_add(1, Relaxed))).unwrap();
        let other = context(1, move || assert_eq!(call(machine), 5));
        probe.enable().unwrap();
        other.join().unwrap();
        // Nobody disables it any more.
        let before = exits.load(Relaxed);
        assert_eq!(call(machine), 5);
        assert_eq!(exits.load(Relaxed) - before, usize::from(probe.is_enabled()));
        probe.leak();
    });
}

/// Instances that are added while others call are taken whole, and tell a map when they are free.
#[test]
fn ret_3_a_pool_grows_while_another_context_calls() {
    model(2, |machine| {
        let alone = Alone::new();
        let probe = R::at("f").max_active(1).grow_to(2).entry(move |_| {
            alone.change();
            Some(())
        });
        let probe = machine.register(probe.exit(move |_, ()| alone.change())).unwrap();
        be_with(0, 2);
        let held = enter(machine);
        let other = context(1, move || assert_eq!(call(machine), 5));
        be_with(0, 0);
        machine.pools().grow(2).unwrap();
        other.join().unwrap();
        assert_eq!(call(machine), 5);
        be_with(0, 2);
        assert_eq!(finish(machine, held), 5);
        let counters = probe.counters();
        assert_eq!(counters.hits + counters.missed_pool, 3);
        probe.leak();
    });
}

/// The instance that two contexts share is one that a map tells of; then the probe goes, and the pool with
/// it.
#[test]
fn ret_2_two_contexts_share_an_instance_of_the_map() {
    model(1, |machine| {
        let alone = Alone::new();
        let entries: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        let probe = R::at("f").max_active(1).grow_to(2);
        let probe = probe.entry(|_| Some(entries.fetch_add(1, Relaxed) == 0)).exit(move |_, is_held| {
            if !is_held {
                alone.change();
            }
        });
        let probe = machine.register(probe).unwrap();
        be_with(0, 2);
        let held = enter(machine);
        machine.pools().grow(2).unwrap();
        be_with(0, 0);
        let other = context(1, move || assert_eq!(call(machine), 5));
        assert_eq!(call(machine), 5);
        be_with(0, 2);
        assert_eq!(finish(machine, held), 5);
        drop(probe);
        other.join().unwrap();
        machine.settle();
    });
}

#[test]
fn reg_13_a_watchpoint_goes_while_its_trap_arrives() {
    model(3, |machine| {
        let owned = Owned::new();
        let watch = machine.watch(Watchpoint::at(0x100, 8).write().then(move |_| owned.check())).unwrap();
        let other = context(1, move || touch_watched(machine));
        drop(watch);
        other.join().unwrap();
    });
}
