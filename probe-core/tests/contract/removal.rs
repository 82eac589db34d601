//! REG_13 to REG_16: how probes go.

use super::all_or_nothing::demanding_batch;
use super::*;
use probe_core::error::{Errno, RemoveError};

#[test]
fn reg_13_unregistering_restores_text_and_frees_memory() {
    let world = World::new();
    plus_five(world, "f");
    plus_five(world, "g");
    let batch = demanding_batch(world);
    let _ = world.host().current();
    let text = world.text();
    let live = alloc_count::live();
    let probes = world.probes.register_all(batch).unwrap();
    world.probes.unregister_all(probes).unwrap();
    assert!(world.text() == text);
    assert_eq!(world.host().live_chunks.load(SeqCst), 0);
    assert!(alloc_count::live() <= live);
}

#[test]
fn reg_13_what_somebody_else_has_written_over_our_breakpoint_stays() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at(at(f, 0)).pre(|_| ())).unwrap();
    world.put(f, &[FOREIGN_BREAK]);
    probe.unregister().unwrap();
    assert_eq!(world.bytes(f, 1), [FOREIGN_BREAK]);
    assert_eq!(world.run(f, &[1]).0, End::Trapped(f));
}

/// The handle is dropped while text cannot be written: what it leaves goes with a later call, whether other
/// probes stand there or not.
#[test]
fn reg_16_a_handle_that_is_dropped_where_text_cannot_be_written_leaves_nothing() {
    for others in 0..2 {
        let world = World::new();
        let f = plus_five(world, "f");
        // What the host keeps for calls and notices is there.
        let _ = (world.host().current(), world.value(f, &[1]));
        world.host().notices.lock().unwrap().reserve(100);
        let text = world.text();
        let live = alloc_count::live();
        let probe = world.probes.register(K::at(at(f, 0)).pre(|_| ()).post(|_| ())).unwrap();
        let batch = (0..others).map(|_| K::at(at(f, 0)).pre(|_| ()).post(|_| ()));
        let other = world.probes.register_all(batch).unwrap();
        world.host().fails_for_good.store(true, SeqCst);
        world.host().failing_write.store(1, SeqCst);
        drop(probe);
        drop(other);
        assert_eq!(world.value(f, &[1]), 6, "its breakpoint stands there still");
        world.probes.settle();
        assert_eq!(world.value(f, &[1]), 6, "it cannot be written yet");
        world.host().failing_write.store(0, SeqCst);
        world.probes.settle();
        world.probes.settle();
        assert!(world.text() == text);
        assert_eq!(world.host().live_chunks.load(SeqCst), 0);
        assert!(alloc_count::live() <= live, "{} bytes are left", alloc_count::live() - live);
    }
}

#[test]
fn reg_13_an_older_probe_keeps_the_breakpoint() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probes = [(); 3].map(|()| world.probes.register(K::at(at(f, 0)).pre(|_| ())).unwrap());
    let [first, second, third] = probes;
    second.unregister().unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    third.unregister().unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(first.counters().hits, 2);
    first.unregister().unwrap();
    assert_eq!(world.bytes(f, 1), [ADD]);
}

#[test]
fn reg_13_and_reg_18_from_a_handler_it_is_ebusy() {
    let world = World::new();
    let f = plus_five(world, "f");
    plus_five(world, "g");
    let inner: &'static _ = Box::leak(Box::new(Mutex::new(Some(world.probes.register(K::at("g")).unwrap()))));
    let log = Log::new();
    let probe = K::at("f").pre(move |_| {
        let error = world.probes.register(K::at("g")).unwrap_err();
        log.add(format!("{:?} {}", error.errno(), error.code()));
        let kept = inner.lock().unwrap().take().unwrap().unregister().unwrap_err();
        log.add(format!("{:?}", kept.error));
        *inner.lock().unwrap() = Some(kept.probe);
        log.add(format!("{:?}", world.probes.switch(probe_core::Switch::Off)));
    });
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    let busy = RemoveError::InHandler;
    assert_eq!(
        log.take(),
        ["EBUSY context.in_handler".into(), format!("{busy:?}"), format!("Err({busy:?})")]
    );
    assert_eq!(probe.counters().hits, 1);
    inner.lock().unwrap().take().unwrap().unregister().unwrap();
}

#[test]
fn reg_14_the_rest_of_a_batch_is_unregistered_though_one_cannot_be() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probes = PLUS_FIVE.map(|offset| K::at(at(f, offset)).pre(|_| ()));
    let probes = world.probes.register_all(probes).unwrap();
    world.host().failing_write.store(3, SeqCst);
    let kept = world.probes.unregister_all(probes).unwrap_err();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].probe.addr().as_usize(), f + 5);
    assert!(matches!(kept[0].error, RemoveError::Text(_)));
    assert_eq!(world.text().iter().filter(|byte| **byte == BREAK).count(), 1);
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(kept[0].probe.counters().hits, 1);
    drop(kept);
    assert!(!world.text().contains(&BREAK));
}

#[test]
fn reg_15_the_same_place_can_be_registered_again() {
    let world = World::new();
    let f = plus_five(world, "f");
    for _ in 0..3 {
        for offset in PLUS_FIVE {
            let probe = world.probes.register(K::at(at(f, offset)).pre(|_| ())).unwrap();
            assert_eq!(world.value(f, &[1]), 6);
            assert_eq!(probe.counters().hits, 1);
            probe.unregister().unwrap();
        }
    }
    assert!(!world.text().contains(&BREAK));
}

#[test]
fn reg_16_dropping_unregisters_and_leaking_keeps() {
    let world = World::new();
    let f = plus_five(world, "f");
    drop(world.probes.register(K::at("f")).unwrap());
    assert_eq!(world.bytes(f, 1), [ADD]);
    let kept = world.probes.register(K::at("f")).unwrap().leak();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(kept.counters().hits, 1);
}

#[test]
fn reg_16_a_handle_dropped_in_a_handler_is_unregistered_by_the_next_call() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let inner: &'static _ =
        Box::leak(Box::new(Mutex::new(Some(world.probes.register(K::at("g").pre(|_| ())).unwrap()))));
    let probe = world.probes.register(K::at("f").pre(move |_| drop(inner.lock().unwrap().take()))).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(world.value(g, &[1]), 6);
    world.probes.settle();
    assert_eq!(world.bytes(g, 1), [ADD]);
    assert_eq!(world.bytes(f, 1), [BREAK]);
    drop(probe);
}

#[test]
fn reg_16_a_handler_may_own_other_probes() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let inner = world.probes.register(K::at("g")).unwrap();
    let outer = world.probes.register(K::at("f").pre(move |_| assert_eq!(inner.counters().hits, 0))).unwrap();
    outer.unregister().unwrap();
    assert_eq!((world.bytes(f, 1), world.bytes(g, 1)), (vec![ADD], vec![ADD]));
}

#[test]
fn reg_13_what_interrupts_a_registration_is_told_so() {
    let world = World::new();
    plus_five(world, "f");
    plus_five(world, "g");
    let told = std::sync::Arc::new(Mutex::new(Vec::new()));
    let log = told.clone();
    // A signal's or an interrupt's handler, in the same task, while text is written.
    *world.host().text_hook.lock().unwrap() = Some(Box::new(move |moment| {
        if moment == Moment::BeforeWrite {
            assert!(!world.probes.events().can_be_told(), "text_going would wait for this registration");
            let mut log = log.lock().unwrap();
            log.push(world.probes.register(K::at("g")).unwrap_err().errno());
            log.push(world.probes.switch(probe_core::Switch::Off).unwrap_err().errno());
        }
    }));
    let probe = world.probes.register(K::at("f")).unwrap();
    *world.host().text_hook.lock().unwrap() = None;
    assert!(world.probes.events().can_be_told());
    let told = told.lock().unwrap();
    assert!(!told.is_empty() && told.iter().all(|&errno| errno == Errno::EBUSY), "{told:?}");
    drop(world.probes.register(K::at("g")).unwrap());
    drop(probe);
}
