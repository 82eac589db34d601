//! Hits by jump.

use crate::machine::{Machine, call, machine, with_jumps};
use crate::ways::{Way, goes, joins};
use crate::{Alone, K, Owned, R, context, explore, owned_probe, place};

/// A model with jumps.
fn model(preemptions: usize, body: impl Fn(&'static Machine) + Sync + Send + 'static) {
    let _alone = with_jumps();
    explore(preemptions, move || body(machine()));
}

#[test]
fn safe_3_a_jump_comes_and_goes_while_another_context_calls() {
    model(2, |machine| {
        let probe = machine.register(owned_probe(0)).unwrap();
        let other = context(1, move || assert_eq!(call(machine), 5));
        assert_eq!(machine.jumps().lay().unwrap(), 1);
        machine.jumps().lift().unwrap();
        other.join().unwrap();
        assert_eq!(probe.counters().hits, 1);
        probe.leak();
    });
}

#[test]
fn reg_13_a_probe_with_a_jump_goes_while_another_context_calls() {
    model(2, |machine| goes(machine, Way::Jumps, owned_probe(0)));
}

/// The second probe takes the detour's short ways from the first one, and gives them back.
#[test]
fn reg_11_a_second_probe_joins_a_jump_while_another_context_calls() {
    model(2, |machine| joins(machine, Way::Jumps));
}

/// Its calls are followed by the owner's store.
#[test]
fn ret_6_a_return_probe_with_a_jump_goes_while_a_call_is_followed() {
    model(1, |machine| {
        let owned = Owned::new();
        goes(machine, Way::Jumps, R::at("f").max_active(2).exit(move |_, ()| owned.check()));
    });
}

#[test]
fn hit_7_hits_by_jump_of_two_contexts_are_counted() {
    model(2, |machine| {
        let probe = machine.register(K::at(place(0)).pre(|_| ())).unwrap();
        assert_eq!(machine.jumps().lay().unwrap(), 1);
        let other = context(1, move || [call(machine), call(machine)]);
        assert_eq!([call(machine), call(machine)], [5; 2]);
        assert_eq!(other.join().unwrap(), [5; 2]);
        assert_eq!(probe.counters().hits, 4);
        probe.leak();
    });
}

/// Between the handlers the context runs a copy, with a frame that keeps the point.
#[test]
fn reg_13_a_probe_with_a_jump_and_a_post_handler_goes_while_another_context_calls() {
    model(1, |machine| {
        let owned = Owned::new();
        goes(machine, Way::Jumps, K::at(place(0)).post(move |_| owned.check()));
    });
}

/// One instance for two contexts, without a handler at the entry.
#[test]
fn ret_2_two_contexts_share_one_instance_by_jump() {
    model(2, |machine| {
        let alone = Alone::new();
        let probe = machine.register(R::at("f").max_active(1).exit(move |_, ()| alone.change())).unwrap();
        assert_eq!(machine.jumps().lay().unwrap(), 1);
        let other = context(1, move || assert_eq!(call(machine), 5));
        assert_eq!(call(machine), 5);
        other.join().unwrap();
        let counters = probe.counters();
        assert_eq!(counters.hits + counters.missed_pool, 2);
        probe.leak();
    });
}
