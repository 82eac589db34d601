//! REG_8 and REG_12: what fails changes nothing, and a batch is registered whole or not at all.

use super::*;
use probe_core::error::{BatchError, Errno};
use probe_core::{AnyProbe, CodeAddr, Jprobe};
use rstest::rstest;

/// What must not change when a registration fails: text, listing, memory.
pub(crate) fn unchanged<T>(world: &'static World, attempt: impl FnOnce() -> T) -> T {
    let listing = |world: &World| {
        let mut out = String::new();
        world.probes.files().list(&mut out, probe_core::files::Viewer::Privileged).unwrap();
        out
    };
    // What the host keeps for this thread is not the core's.
    let _ = world.host().current();
    let text = world.text();
    let chunks = world.host().live_chunks.load(SeqCst);
    let lines = listing(world);
    let live = alloc_count::live();
    let result = attempt();
    // The results of the callers hold no memory.
    assert_eq!(live, alloc_count::live(), "memory has changed");
    assert!(text == world.text(), "text has changed");
    assert_eq!((lines, chunks), (listing(world), world.host().live_chunks.load(SeqCst)));
    result
}

/// A batch that needs everything: slots, stubs, pools, a post handler on a boosted point that is there
/// already.
pub(crate) fn demanding_batch(world: &'static World) -> Vec<AnyProbe<Toy>> {
    let mut probes: Vec<AnyProbe<Toy>> = Vec::new();
    for name in ["f", "g"] {
        for offset in PLUS_FIVE {
            probes.push(K::at(Place::symbol(name).offset(offset)).pre(|_| ()).post(|_| ()).into());
        }
        probes.push(R::at(name).entry(|_| Some(Box::new(1))).exit(|_, _| ()).into());
        let handler = world.function("handler", &[RETURN]);
        // SAFETY: the handler takes no arguments.
        probes.push(unsafe { Jprobe::from_raw(name, handler) }.into());
    }
    probes
}

#[test]
fn reg_8_a_failed_text_write_changes_nothing_at_whatever_write() {
    for number in 1.. {
        let world = World::new();
        let f = plus_five(world, "f");
        plus_five(world, "g");
        let old = world.probes.register(K::at(at(f, 0)).pre(|_| ())).unwrap();
        let batch = demanding_batch(world);
        let text = world.text();
        let chunks = world.host().live_chunks.load(SeqCst);
        world.host().failing_write.store(number, SeqCst);
        let result = world.probes.register_all(batch);
        let was_reached = world.host().failing_write.swap(0, SeqCst) == 0;
        if !was_reached {
            assert!(result.is_ok());
            assert!(number > 20, "only {number} writes");
            break;
        }
        let error = result.unwrap_err().error;
        assert_eq!(error.errno(), Errno::EFAULT, "write {number}: {error}");
        assert!(world.text() == text, "write {number}");
        assert_eq!(world.host().live_chunks.load(SeqCst), chunks, "write {number}");
        assert_eq!(world.value(f, &[1]), 6);
        assert_eq!(old.counters().hits, 1);
        drop(old);
        assert_eq!(world.bytes(f, 1), [ADD]);
    }
}

#[test]
fn reg_8_a_failed_write_gives_all_memory_back() {
    let growth = host_growth();
    for number in 1..40 {
        let world = World::new();
        plus_five(world, "f");
        plus_five(world, "g");
        world.host().failing_write.store(number, SeqCst);
        let _ = world.host().current();
        let live = alloc_count::live();
        let was_ok = world.probes.register_all(demanding_batch(world)).is_ok();
        let symbols = world.host().symbols.lock().unwrap().len();
        assert_eq!(symbols, 4);
        if was_ok {
            return;
        }
        // The two handlers' symbols are the host's.
        assert_eq!(alloc_count::live(), live + growth, "write {number}");
    }
    panic!("never succeeded");
}

/// What two more symbols cost the host.
fn host_growth() -> isize {
    let world = World::new();
    plus_five(world, "f");
    plus_five(world, "g");
    let live = alloc_count::live();
    drop(demanding_batch(world));
    alloc_count::live() - live
}

#[test]
fn reg_8_without_executable_memory_it_is_enomem() {
    for chunks in 0..2 {
        let world = World::new();
        plus_five(world, "f");
        plus_five(world, "g");
        world.host().chunks_left.store(chunks, SeqCst);
        let text = world.text().len();
        let result = world.probes.register_all(demanding_batch(world));
        let error = result.unwrap_err();
        assert_eq!(error.error.errno(), Errno::ENOMEM);
        assert_eq!(world.host().live_chunks.load(SeqCst), 0);
        assert_eq!(world.value(world.arena() + 64, &[1]), 6);
        assert!(world.text()[..text].iter().all(|byte| *byte != BREAK));
    }
}

#[test]
fn reg_8_without_memory_it_is_enomem_at_whatever_allocation() {
    for failures in 0.. {
        let world = World::new();
        let f = plus_five(world, "f");
        plus_five(world, "g");
        let batch = demanding_batch(world);
        let _ = world.host().current();
        let text = world.text();
        let live = alloc_count::live();
        alloc_count::fail_allocation(failures + 1);
        let result = world.probes.register_all(batch);
        alloc_count::fail_allocation(0);
        match result {
            Ok(probes) => {
                drop(probes);
                assert!(failures > 20, "only {failures} allocations failed");
                return;
            }
            Err(error) => assert_eq!(error.error.errno(), Errno::ENOMEM, "{error}"),
        }
        assert!(world.text() == text);
        assert!(alloc_count::live() <= live, "after {failures} failures");
        assert_eq!(world.value(f, &[1]), 6);
    }
}

#[rstest]
#[case::first(0)]
#[case::middle(3)]
#[case::last(6)]
fn reg_12_a_failing_batch_leaves_nothing_and_tells_the_index(#[case] bad: usize) {
    let world = World::new();
    let f = plus_five(world, "f");
    let text = world.text();
    // Backwards, so that the order of addresses is not the order of the batch.
    let place = |index: usize| at(f, if index == bad { 1 } else { PLUS_FIVE[6 - index] });
    let batch = (0..7).map(|index| K::at(place(index)).pre(|_| ()));
    let error = world.probes.register_all(batch).unwrap_err();
    let inside = RegisterError::InsideInstruction { at: CodeAddr::new(f + 1), start: CodeAddr::new(f) };
    assert_eq!(error, BatchError { index: bad, error: inside });
    assert!(world.text() == text);
}

#[test]
fn reg_12_the_first_of_several_failures_is_told() {
    let world = World::new();
    let f = plus_five(world, "f");
    let batch = [at(f, 15), at(f, 4), at(f, 1)].map(K::at);
    assert_eq!(world.probes.register_all(batch).unwrap_err().index, 1);
}

#[test]
fn reg_12_a_batch_costs_as_many_syncs_as_one_probe() {
    let syncs = |count: usize| {
        let world = World::new();
        for index in 0..count {
            plus_five(world, &format!("f{index}"));
        }
        let probes = (0..count).map(|index| K::at(&*format!("f{index}")).pre(|_| ()).post(|_| ()));
        let probes = world.probes.register_all(probes).unwrap();
        let registered = world.host().syncs.load(SeqCst);
        world.probes.unregister_all(probes).unwrap();
        (registered, world.host().syncs.load(SeqCst) - registered)
    };
    let (registered, removed) = syncs(1);
    // Planting; then one grace period for the hits, another for who has found what is to be freed.
    assert_eq!((registered, removed), (1, 2));
    assert_eq!(syncs(100), (registered, removed));
}

/// What a host makes ready for a stretch of writes it makes ready once for a batch.
#[test]
fn reg_12_a_batch_is_written_in_as_many_stretches_as_one_probe() {
    let stretches = |count: usize| {
        let world = World::new();
        world.probes.jumps().set_automatic(true.into());
        for index in 0..count {
            optimise::plus_six(world, &format!("f{index}"));
        }
        let so_far = || (world.host().stretches.load(SeqCst), world.host().writes.load(SeqCst));
        let probes = (0..count).map(|index| K::at(&*format!("f{index}")).pre(|_| ()));
        let probes = world.probes.register_all(probes).unwrap();
        assert_eq!(optimise::list(world).matches("[OPTIMIZED]").count(), count);
        let registered = so_far();
        world.probes.unregister_all(probes).unwrap();
        let all = so_far();
        assert_eq!(world.host().stretch_depth.load(SeqCst), 0);
        // A slot, its tail, a breakpoint, a detour and the jump's parts; some of it back.
        assert!(all.1 >= 8 * count, "{all:?}");
        (registered.0, all.0 - registered.0)
    };
    assert_eq!(stretches(1), stretches(100));
}
