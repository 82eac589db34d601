//! REG_1 to REG_18.

use super::*;
use probe_core::arch::Method;
use probe_core::{AnyProbe, BatchError, CodeAddr, ControlError, Errno, Flow, Jprobe, Kind};
use rstest::rstest;

/// What must not change when a registration fails: text, listing, memory.
fn unchanged<T>(world: &'static World, attempt: impl FnOnce() -> T) -> T {
    let listing = |world: &World| {
        let mut out = String::new();
        world.probes.list(&mut out, probe_core::Viewer::Privileged).unwrap();
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

fn refused(world: &'static World, place: impl Into<Place>) -> (Errno, &'static str) {
    let place = place.into();
    unchanged(world, || {
        let error = world.probes.register(K::at(place.clone()).pre(|_| ())).unwrap_err();
        let explained = world.probes.explain(&place).unwrap_err();
        assert_eq!(explained, error, "explain tells something else");
        (error.errno(), error.code())
    })
}

#[test]
fn reg_1_symbol_with_offset_and_address_name_the_same_place() {
    let world = World::new();
    let f = plus_five(world, "f");
    let by_name = world.probes.register(K::at(Place::symbol("f").offset(3))).unwrap();
    let by_address = world.probes.register(K::at(at(f, 3))).unwrap();
    assert_eq!(by_name.addr(), by_address.addr());
    assert_eq!(by_name.addr().as_usize(), f + 3);
}

#[test]
fn reg_2_unknown_symbol_is_enoent() {
    let world = World::new();
    assert_eq!(refused(world, "nothing"), (Errno::ENOENT, "place.no_symbol"));
    plus_five(world, "f");
    assert_eq!(refused(world, Place::symbol("f").in_module("other")), (Errno::ENOENT, "place.no_symbol"));
}

#[test]
fn reg_2_ambiguous_symbol_lists_its_candidates() {
    let world = World::new();
    let first = plus_five(world, "f");
    let second = world.function_in("f", Some("module"), &[NOP, RETURN]);
    assert_eq!(refused(world, "f"), (Errno::EADDRNOTAVAIL, "place.ambiguous"));
    let error = world.probes.register(K::at("f")).unwrap_err();
    let candidates = vec![CodeAddr::new(first), CodeAddr::new(second)];
    assert_eq!(error, RegisterError::Ambiguous { name: "f".into(), candidates: candidates.clone() });
    assert_eq!(world.probes.resolve_all(&"f".into()), candidates);
    let probe = world.probes.register(K::at(Place::symbol("f").in_module("module"))).unwrap();
    assert_eq!(probe.addr().as_usize(), second);
}

#[test]
fn reg_2_the_same_symbol_from_two_tables_is_one() {
    let world = World::new();
    let f = plus_five(world, "f");
    let again = world.host().symbols.lock().unwrap()[0].clone();
    world.host().symbols.lock().unwrap().push(again);
    assert_eq!(world.probes.register(K::at("f")).unwrap().addr().as_usize(), f);
}

#[test]
fn reg_3_outside_probeable_text_or_blacklisted_is_einval() {
    let world = World::new();
    let f = plus_five(world, "f");
    world.host().blacklist.lock().unwrap().push((f + 3, f + 5, "secret".into()));
    assert_eq!(refused(world, at(f, 3)), (Errno::EINVAL, "place.blacklisted"));
    assert_eq!(refused(world, at(world.arena() + DATA, 8)), (Errno::EINVAL, "place.not_text"));
}

#[test]
fn reg_4_inside_an_instruction_is_eilseq_also_behind_other_probes() {
    let world = World::new();
    let f = plus_five(world, "f");
    assert_eq!(refused(world, at(f, 1)), (Errno::EILSEQ, "place.inside_instruction"));
    let others: Vec<_> =
        PLUS_FIVE.iter().map(|offset| world.probes.register(K::at(at(f, *offset))).unwrap()).collect();
    for offset in (0..16).filter(|offset| !PLUS_FIVE.contains(offset)) {
        assert_eq!(refused(world, at(f, offset)).0, Errno::EILSEQ, "offset {offset}");
    }
    drop(others);
    let broken = world.function("broken", &[NOP, 0x99, NOP, RETURN]);
    assert_eq!(refused(world, at(broken, 2)), (Errno::EILSEQ, "place.undecodable"));
}

#[test]
fn reg_4_without_a_symbol_only_unchecked_will_do() {
    let world = World::new();
    let f = plus_five(world, "f");
    world.host().symbols.lock().unwrap().clear();
    assert_eq!(refused(world, at(f, 0)), (Errno::ENOENT, "place.no_symbol_covers"));
    // SAFETY: an instruction starts there.
    let place = unsafe { Place::unchecked(CodeAddr::new(f + 3)) };
    let probe = world.probes.register(K::at(place)).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(probe.counters().hits, 1);
}

#[rstest]
#[case::negative(-1)]
#[case::one_past(16)]
#[case::far(1 << (isize::BITS - 24))]
#[case::overflowing(isize::MAX)]
#[case::underflowing(isize::MIN)]
fn reg_5_offset_outside_the_symbol_is_einval(#[case] offset: isize) {
    let world = World::new();
    plus_five(world, "f");
    assert_eq!(refused(world, Place::symbol("f").offset(offset)), (Errno::EINVAL, "place.outside_symbol"));
}

#[test]
fn reg_6_a_refused_instruction_names_its_rule() {
    let world = World::new();
    let f = world.function("f", &[NOP, FORBIDDEN, RETURN]);
    assert_eq!(refused(world, at(f, 1)), (Errno::EOPNOTSUPP, "toy.forbidden"));
    let error = world.probes.register(K::at(at(f, 1))).unwrap_err();
    assert!(error.to_string().contains("this instruction is forbidden"), "{error}");
}

#[rstest]
#[case::our_kind(BREAK)]
#[case::another_kind(FOREIGN_BREAK)]
fn reg_7_a_foreign_breakpoint_is_eilseq(#[case] breakpoint: u8) {
    let world = World::new();
    let f = world.function("f", &[NOP, breakpoint, RETURN]);
    assert_eq!(refused(world, at(f, 1)), (Errno::EILSEQ, "place.foreign_breakpoint"));
    assert_eq!(world.run(f, &[]).0, End::Trapped(f + 1));
}

/// A batch that needs everything: slots, stubs, pools, a post handler on a boosted point that is there already.
fn demanding_batch(world: &'static World) -> Vec<AnyProbe<Toy>> {
    let mut probes: Vec<AnyProbe<Toy>> = Vec::new();
    for name in ["f", "g"] {
        for offset in PLUS_FIVE {
            probes.push(K::at(Place::symbol(name).offset(offset)).pre(|_| ()).post(|_| ()).into());
        }
        probes.push(R::on(name).entry(|_| Some(Box::new(1))).exit(|_, _| ()).into());
        let handler = world.function("handler", &[RETURN]);
        // SAFETY: the handler takes no arguments.
        probes.push(unsafe { Jprobe::on(name, handler) }.into());
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

#[test]
fn reg_9_explain_tells_the_method_and_does_nothing() {
    let world = World::new();
    let f = plus_five(world, "f");
    let methods = PLUS_FIVE.map(|offset| {
        unchanged(world, || {
            let told = world.probes.explain(&at(f, offset)).unwrap();
            assert_eq!(told.at.as_usize(), f + offset as usize);
            assert_eq!(told.symbol, Some(("f".into(), offset as usize)));
            assert_eq!(told.insn.as_ref(), world.bytes(f + offset as usize, told.insn.len()));
            assert_eq!(told.is_entry, offset == 0);
            assert_eq!(told.has_slot, told.method != Method::Simulate);
            told.method
        })
    });
    use Method::*;
    assert_eq!(methods, [Boost, Step, Step, Boost, Simulate, Boost, Simulate]);
}

#[test]
fn reg_10_registering_disabled_plants_the_probe_without_a_trap() {
    let world = World::new();
    let f = plus_five(world, "f");
    let text = world.text();
    let probe = world.probes.register(K::at(at(f, 0)).disabled()).unwrap();
    assert!(!probe.is_enabled());
    assert!(world.text() == text);
    assert_eq!(world.value(f, &[1]), 6);
    probe.enable().unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(probe.counters().hits, 1);
}

#[test]
fn reg_11_pre_handlers_run_newest_first_and_the_first_redirection_ends_the_walk() {
    let world = World::new();
    let f = plus_five(world, "f");
    let other = world.function("other", &[SET, 0, 77, 0, RETURN]);
    let log = Log::new();
    let probes = ["a", "b", "c"].map(|name| {
        let redirects = counter();
        let probe = K::at("f")
            .pre(move |hit| {
                log.add(name);
                if redirects.load(SeqCst) == 0 {
                    return Flow::Continue;
                }
                hit.regs_mut().pc = other;
                Flow::Redirected
            })
            .post(move |_| log.add(format!("{name} post")));
        (world.probes.register(probe).unwrap(), redirects)
    });
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(log.take(), ["c", "b", "a", "c post", "b post", "a post"]);
    assert_eq!(world.bytes(f, 1), [BREAK]);
    probes[1].1.store(1, SeqCst);
    assert_eq!(world.value(f, &[1]), 77);
    assert_eq!(log.take(), ["c", "b"]);
    assert_eq!(probes[0].0.counters().hits, 1);
    assert_eq!(probes[1].0.counters().hits, 2);
}

#[test]
fn reg_11_a_second_jprobe_is_eexist() {
    let world = World::new();
    plus_five(world, "f");
    let handler = world.function("handler", &[RETURN]);
    // SAFETY: the handler takes no arguments.
    let jprobe = || unsafe { Jprobe::<Toy>::on("f", handler) };
    let first = world.probes.register(jprobe()).unwrap();
    let error = world.probes.register(jprobe()).unwrap_err();
    assert_eq!((error.errno(), error.code()), (Errno::EEXIST, "jprobe.second"));
    drop(first);
    let batch = world.probes.register_all([jprobe(), jprobe()]).unwrap_err();
    assert_eq!((batch.index, batch.error.errno()), (1, Errno::EEXIST));
    assert!(world.probes.register(jprobe()).is_ok());
}

#[test]
fn reg_11_a_failed_batch_leaves_room_for_a_jprobe() {
    let world = World::new();
    let f = world.function("f", &[NOP, FORBIDDEN, RETURN]);
    let handler = world.function("handler", &[RETURN]);
    let _old = world.probes.register(K::at("f")).unwrap();
    // SAFETY: the handler takes no arguments.
    let jprobe = || unsafe { Jprobe::<Toy>::on("f", handler) };
    let batch: [AnyProbe<Toy>; 2] = [jprobe().into(), K::at(at(f, 1)).into()];
    let failed = world.probes.register_all(batch).unwrap_err();
    assert_eq!((failed.index, failed.error.code()), (1, "toy.forbidden"));
    assert!(world.probes.register(jprobe()).is_ok());
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
    let busy = ControlError::InHandler;
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
    assert!(matches!(kept[0].error, ControlError::Text(_)));
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
fn reg_17_return_probes_and_jprobes_belong_on_entries() {
    let world = World::new();
    let f = world.function("f", &[ENTRY, ADD, 0, 5, RETURN]);
    let handler = world.function("handler", &[RETURN]);
    for offset in [0, 1] {
        let probe = world.probes.register(R::on(at(f, offset))).unwrap();
        assert_eq!(probe.addr().as_usize(), f + 1);
        assert_eq!(probe.kind(), Kind::Kretprobe);
        // SAFETY: the handler takes no arguments.
        let jprobe = world.probes.register(unsafe { Jprobe::on(at(f, offset), handler) }).unwrap();
        assert_eq!((jprobe.addr().as_usize(), jprobe.kind()), (f + 1, Kind::Jprobe));
        assert_eq!(world.value(f, &[1]), 6);
    }
    let error = unchanged(world, || world.probes.register(R::on(at(f, 4))).unwrap_err());
    assert_eq!((error.errno(), error.code()), (Errno::EINVAL, "place.not_entry"));
    let kprobe = world.probes.register(K::at("f")).unwrap();
    assert_eq!(kprobe.addr().as_usize(), f + 1, "a kprobe on the symbol keeps the landing pad");
}

#[test]
fn reg_17_an_entry_may_end_behind_the_place_that_probes_on_it_have() {
    let world = World::new();
    let f = world.function("f", &[ENTRY, NOP, ADD, 0, 5, RETURN]);
    for offset in [0, 1, 2] {
        let probe = world.probes.register(R::on(at(f, offset))).unwrap();
        assert_eq!(probe.addr().as_usize(), f + 1, "{offset}");
        assert_eq!((world.value(f, &[1]), probe.counters().hits), (6, 1));
    }
    let error = unchanged(world, || world.probes.register(R::on(at(f, 5))).unwrap_err());
    assert_eq!(error.code(), "place.not_entry");
    let kprobe = world.probes.register(K::at(at(f, 2))).unwrap();
    assert_eq!(kprobe.addr().as_usize(), f + 2, "a kprobe stands where it was asked for");
}

#[test]
fn reg_9_many_places_are_explained_as_one_by_one() {
    let world = World::new();
    let f = world.function("f", &[ENTRY, ADD, 0, 5, FORBIDDEN, RETURN]);
    let places: Vec<_> = (0..6).map(|offset| at(f, offset)).collect();
    let are_as_alone = unchanged(world, || {
        let alone = places.iter().map(|place| world.probes.explain(place));
        let together = world.probes.explain_all(&places);
        let same = alone.zip(&together).all(|(alone, together)| match (&alone, together) {
            (Ok(alone), Ok(together)) => alone == together,
            (Err(alone), Err(together)) => alone.code() == together.code(),
            _ => false,
        });
        same && together.len() == 6 && together[1].is_ok() && together[2].is_err() && together[4].is_err()
    });
    assert!(are_as_alone);
    assert!(world.probes.explain_all(&[]).is_empty());
}

#[test]
fn reg_18_a_handler_may_disable_and_enable() {
    let world = World::new();
    let f = plus_five(world, "f");
    let once = world.probes.register(K::at("f").pre(|hit: &mut Hit<'_, Toy>| hit.disable())).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(once.counters().hits, 1);
    assert!(!once.is_enabled());
    world.probes.settle();
    assert_eq!(world.bytes(f, 1), [ADD], "the breakpoint goes later");
    let g = plus_five(world, "g");
    let once: &'static _ = once.leak();
    let probe = world.probes.register(K::at("g").pre(move |_| once.enable().unwrap())).unwrap();
    assert_eq!(world.value(g, &[1]), 6);
    assert!(once.is_enabled());
    drop(probe);
    assert_eq!(world.bytes(f, 1), [BREAK], "the breakpoint comes later");
}

/// HIT_8 and REG_18: what would wait for the handlers says so instead; what only marks is done.
#[test]
fn reg_18_in_a_handler_everything_that_changes_text_is_ebusy() {
    let world = World::new();
    let f = plus_five(world, "f");
    plus_five(world, "g");
    world.host().has_watchpoints.store(true, SeqCst);
    let watch = world.probes.watch(probe_core::Watchpoint::on(0x1000, 8).disabled()).unwrap();
    let log = Log::new();
    let probe = K::at("f").pre(move |_| {
        log.add(format!("{:?}", world.probes.optimise().map_err(|error| error.errno())));
        log.add(format!("{:?}", world.probes.unoptimise().map_err(|error| error.errno())));
        let explained = world.probes.explain_all(&["g".into(), "f".into()]);
        log.add(format!("{:?}", explained.iter().flatten().count()));
        let second = world.probes.watch(probe_core::Watchpoint::on(0x2000, 8));
        log.add(format!("{:?}", second.map_err(|error| error.errno()).map(drop)));
        // Later.
        log.add(format!("{:?} {}", watch.enable(), world.host().watched[0].load(SeqCst)));
    });
    let _probe = world.probes.register(probe).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(log.take(), ["Err(EBUSY)", "Err(EBUSY)", "0", "Err(EBUSY)", "Ok(()) 0"]);
    world.probes.settle();
    assert_eq!(world.host().watched[0].load(SeqCst), 0x1000);
}

/// REG_2, REG_5: a name gives all its places, an address itself, and none lies outside the address space.
#[test]
fn reg_2_places_of_a_name_and_of_an_address() {
    let world = World::new();
    let (a, b) = (plus_five(world, "f"), plus_five(world, "f"));
    let all = |place: Place| world.probes.resolve_all(&place);
    assert_eq!(all(Place::symbol("f").offset(3)), [a + 3, b + 3].map(probe_core::CodeAddr::new));
    assert_eq!(all(at(a, 3)), [probe_core::CodeAddr::new(a + 3)]);
    assert_eq!(refused(world, at(a, isize::MIN)), (Errno::EINVAL, "place.outside_symbol"));
}

/// Whoever looks at a place, a probe or what was kept is told what it is.
#[test]
fn places_and_probes_say_what_they_are() {
    let world = World::new();
    let f = plus_five(world, "f");
    let told = |place: Place| place.to_string();
    assert_eq!(told("f".into()), "f");
    assert_eq!(told(Place::symbol("f").in_module("m").offset(16)), "m:f+0x10");
    assert_eq!(told(Place::from(probe_core::CodeAddr::new(0x1000)).offset(-3)), "0x1000-0x3");
    let any: [AnyProbe<Toy>; 3] = [
        K::at("f").pre(|hit: &mut Hit<'_, Toy>| assert!(format!("{hit:?}").starts_with("Hit { pc: "))).into(),
        // SAFETY: never called.
        unsafe { probe_core::Jprobe::on("f", 0x1000) }.into(),
        R::on("f").into(),
    ];
    let kinds = any.each_ref().map(|probe| format!("{probe:?}"));
    assert!(
        kinds.iter().zip(["Kprobe", "Jprobe", "Kretprobe"]).all(|(told, kind)| told.starts_with(kind)),
        "{kinds:?}"
    );
    assert!(any.iter().all(|probe| probe.place().to_string() == "f"));
    let [kprobe, ..] = any;
    let probe = world.probes.register(kprobe).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert!(format!("{probe:?}").starts_with("Probe { kind: Kprobe, addr: "), "{probe:?}");
    // One that cannot be removed is handed back.
    world.host().failing_write.store(1, SeqCst);
    world.host().fails_for_good.store(true, SeqCst);
    let kept = probe.unregister().unwrap_err();
    world.host().failing_write.store(0, SeqCst);
    assert!(kept.to_string().contains("is kept: text at "), "{kept}");
    assert!(format!("{kept:?}").starts_with("Kept { probe: Probe {"), "{kept:?}");
    kept.probe.unregister().unwrap();
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
            let mut log = log.lock().unwrap();
            log.push(world.probes.register(K::at("g")).unwrap_err().errno());
            log.push(world.probes.switch(probe_core::Switch::Off).unwrap_err().errno());
        }
    }));
    let probe = world.probes.register(K::at("f")).unwrap();
    *world.host().text_hook.lock().unwrap() = None;
    let told = told.lock().unwrap();
    assert!(!told.is_empty() && told.iter().all(|&errno| errno == Errno::EBUSY), "{told:?}");
    drop(world.probes.register(K::at("g")).unwrap());
    drop(probe);
}
