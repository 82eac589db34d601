//! The cost of probes: bytes, time, and nothing left behind.

use super::*;
use std::time::{Duration, Instant};

/// A program with `count` one-byte instructions in one function.
fn field(world: &World, count: usize) -> usize {
    world.function("field", &std::iter::repeat_n(NOP, count).chain([RETURN]).collect::<Vec<_>>())
}

#[test]
fn a_kprobe_costs_at_most_256_bytes_and_32_of_slot() {
    const COUNT: usize = 100_000;
    let world = World::new();
    let f = field(world, COUNT);
    let probes = (0..COUNT as isize).map(|offset| K::at(at(f, offset)).pre(|_| ()));
    // What the host keeps for this thread.
    let _ = world.host().current();
    let before = alloc_count::live();
    let probes = world.probes.register_all(probes).unwrap();
    let handles = COUNT * size_of::<probe_core::Probe<ToyHost>>();
    let each = ((alloc_count::live() - before) as usize - handles) / COUNT;
    // The backends' plans have 16 bytes; so a point may take one step more of the allocator there.
    assert!(size_of::<ToyPlan>() <= 16);
    assert!(each + 16 <= 256, "{each} bytes, the caller's handle apart");
    let slots = world.host().live_chunks.load(SeqCst) as usize * CHUNK / COUNT;
    assert!(slots <= 32, "{slots} bytes of slots");
    world.probes.unregister_all(probes).unwrap();
    assert_eq!(world.host().live_chunks.load(SeqCst), 0);
    assert!(alloc_count::live() <= before);
}

#[test]
fn a_batch_of_100_000_probes_takes_a_second_at_most_each_way() {
    const COUNT: usize = 100_000;
    // Without optimisation everything is several times slower, and once more under an emulator.
    let slower = if cfg!(debug_assertions) { 10 } else { 1 } * if is_emulated() { 10 } else { 1 };
    let limit = Duration::from_secs(slower);
    let world = World::new();
    let f = field(world, COUNT);
    let begin = Instant::now();
    // Backwards, so that sorting has something to do.
    let probes = (0..COUNT as isize).rev().map(|offset| K::at(at(f, offset)).pre(|_| ()));
    let probes = world.probes.register_all(probes).unwrap();
    let registered = begin.elapsed();
    let begin = Instant::now();
    world.probes.unregister_all(probes).unwrap();
    let removed = begin.elapsed();
    assert!(registered <= limit && removed <= limit, "{registered:?}, {removed:?}");
}

#[test]
fn coming_and_going_does_not_grow_memory() {
    let world = World::new();
    let f = plus_five(world, "f");
    let round = || {
        let probes = PLUS_FIVE.map(|offset| K::at(at(f, offset)).pre(|_| ()).post(|_| ()));
        let probes = world.probes.register_all(probes).unwrap();
        let boosted = world.probes.register(K::at("f").pre(|_| ())).unwrap();
        let ret = world.probes.register(R::at("f").entry(|_| Some(Box::new(1))).exit(|_, _| ())).unwrap();
        assert_eq!(world.value(f, &[1]), 6);
        drop((boosted, ret));
        world.probes.unregister_all(probes).unwrap();
        let boosted = world.probes.register(K::at("f").pre(|_| ())).unwrap();
        assert_eq!(world.value(f, &[1]), 6);
        drop(boosted);
    };
    // The table changes its size now and then; what counts is the most that is ever held.
    let most = |rounds: usize| {
        let held = (0..rounds).map(|_| {
            round();
            (alloc_count::live(), world.host().live_chunks.load(SeqCst))
        });
        held.max().unwrap()
    };
    let settled = most(30);
    assert_eq!(most(300), settled);
}
