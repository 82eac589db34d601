//! REG_1 to REG_7, REG_9 to REG_11, REG_17 and REG_18.

use super::all_or_nothing::unchanged;
use super::*;
use probe_core::arch::Method;
use probe_core::error::{BatchError, Errno};
use probe_core::handler::Flow;
use probe_core::{AnyProbe, CodeAddr, Jprobe, Kind};
use rstest::rstest;

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
    assert_eq!(world.probes.candidates(&"f".into()), candidates);
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
    let jprobe = || unsafe { Jprobe::<Toy>::from_raw("f", handler) };
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
    let jprobe = || unsafe { Jprobe::<Toy>::from_raw("f", handler) };
    let batch: [AnyProbe<Toy>; 2] = [jprobe().into(), K::at(at(f, 1)).into()];
    let failed = world.probes.register_all(batch).unwrap_err();
    assert_eq!((failed.index, failed.error.code()), (1, "toy.forbidden"));
    assert!(world.probes.register(jprobe()).is_ok());
}

#[test]
fn reg_17_return_probes_and_jprobes_belong_on_entries() {
    let world = World::new();
    let f = world.function("f", &[ENTRY, ADD, 0, 5, RETURN]);
    let handler = world.function("handler", &[RETURN]);
    for offset in [0, 1] {
        let probe = world.probes.register(R::at(at(f, offset))).unwrap();
        assert_eq!(probe.addr().as_usize(), f + 1);
        assert_eq!(probe.kind(), Kind::Kretprobe);
        // SAFETY: the handler takes no arguments.
        let jprobe = world.probes.register(unsafe { Jprobe::from_raw(at(f, offset), handler) }).unwrap();
        assert_eq!((jprobe.addr().as_usize(), jprobe.kind()), (f + 1, Kind::Jprobe));
        assert_eq!(world.value(f, &[1]), 6);
    }
    let error = unchanged(world, || world.probes.register(R::at(at(f, 4))).unwrap_err());
    assert_eq!((error.errno(), error.code()), (Errno::EINVAL, "place.not_entry"));
    let kprobe = world.probes.register(K::at("f")).unwrap();
    assert_eq!(kprobe.addr().as_usize(), f + 1, "a kprobe on the symbol keeps the landing pad");
}

#[test]
fn reg_17_an_entry_may_end_behind_the_place_that_probes_on_it_have() {
    let world = World::new();
    let f = world.function("f", &[ENTRY, NOP, ADD, 0, 5, RETURN]);
    for offset in [0, 1, 2] {
        let probe = world.probes.register(R::at(at(f, offset))).unwrap();
        assert_eq!(probe.addr().as_usize(), f + 1, "{offset}");
        assert_eq!((world.value(f, &[1]), probe.counters().hits), (6, 1));
    }
    let error = unchanged(world, || world.probes.register(R::at(at(f, 5))).unwrap_err());
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
fn reg_9_what_is_checked_is_what_is_explained() {
    let world = World::new();
    let f = world.function("f", &[ENTRY, ADD, 0, 5, FORBIDDEN, RETURN]);
    let places: Vec<_> =
        (0..6).flat_map(|offset| [false, true].map(|wants_entry| (at(f, offset), wants_entry))).collect();
    let agrees = unchanged(world, || {
        let agrees = |(place, wants_entry): &(Place, bool), checked: &Result<(), RegisterError>| {
            let explained = world.probes.explain(place);
            let explained = explained.and_then(|told| if *wants_entry { told.entry } else { Ok(()) });
            explained.map_err(|error| error.code()) == checked.clone().map_err(|error| error.code())
        };
        let checked = world.probes.check_all(&places);
        let taken = checked.iter().filter(|checked| checked.is_ok()).count();
        // The entry by both of its addresses and in both ways; RETURN for a kprobe only.
        taken == 5
            && checked.len() == 12
            && places.iter().zip(&checked).all(|(place, told)| agrees(place, told))
    });
    assert!(agrees);
    assert!(world.probes.check_all(&[]).is_empty());
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
    let watch = world.probes.watch(probe_core::Watchpoint::at(0x1000, 8).disabled()).unwrap();
    let log = Log::new();
    let probe = K::at("f").pre(move |_| {
        log.add(format!("{:?}", world.probes.jumps().lay().map_err(|error| error.errno())));
        log.add(format!("{:?}", world.probes.jumps().lift().map_err(|error| error.errno())));
        let explained = world.probes.explain_all(&["g".into(), "f".into()]);
        log.add(format!("{:?}", explained.iter().flatten().count()));
        let second = world.probes.watch(probe_core::Watchpoint::at(0x2000, 8));
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
    let all = |place: Place| world.probes.candidates(&place);
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
        unsafe { probe_core::Jprobe::from_raw("f", 0x1000) }.into(),
        R::at("f").into(),
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

/// Whoever registers is told where a probe will stand before it can be hit, also where the batch fails.
#[test]
fn reg_12_where_probes_stand_is_told_before_anything_is_written() {
    let world = World::new();
    let f = plus_five(world, "f");
    let told = |probes: Vec<K>| {
        let mut told = Vec::new();
        let writes = world.host().writes.load(SeqCst);
        let done = world.probes.register_placed(probes, |index, at| {
            assert_eq!(world.host().writes.load(SeqCst), writes);
            told.push((index, at.as_usize()));
        });
        (done.map(|probes| probes.len()), told)
    };
    let (done, places) = told(vec![K::at(at(f, 3)).pre(|_| ()), K::at("f")]);
    assert_eq!((done.unwrap(), places), (2, vec![(0, f + 3), (1, f)]));
    world.host().chunks_left.store(0, SeqCst);
    let (done, places) = told(vec![K::at("f").pre(|_| ())]);
    assert!(matches!(done, Err(BatchError { error: RegisterError::NoSlot(_), .. })));
    assert_eq!(places, [(0, f)]);
}
