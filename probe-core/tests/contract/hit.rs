//! HIT_1 to HIT_12, as far as they need no real instruction set: what the smallest backend keeps, too.

use super::*;
use probe_core::Switch;
use probe_core::arch::{Access, Arch, MemFault};
use probe_core::handler::{Answer, Flow};
use probe_core::limits::MAX_DEPTH;
use rstest::rstest;

/// A handler that must not run.
fn never(hit: &mut Hit<'_, Toy>) {
    panic!("{hit:?}");
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum With {
    Pre,
    Post,
    Both,
    Nothing,
}

#[rstest]
fn hit_1_a_probed_run_ends_as_a_bare_one(
    #[values(0, 3, 5, 8, 11, 14, 15)] offset: isize,
    #[values(With::Pre, With::Post, With::Both, With::Nothing)] with: With,
) {
    let world = World::new();
    let f = plus_five(world, "f");
    let bare = world.run(f, &[1, 2, 3, 4, 5]);
    let (pre, post) = (counter(), counter());
    let mut probe = K::at(at(f, offset));
    if matches!(with, With::Pre | With::Both) {
        probe = probe.pre(move |_| bump(pre));
    }
    if matches!(with, With::Post | With::Both) {
        probe = probe.post(move |_| bump(post));
    }
    let probe = world.probes.register(probe).unwrap();
    for round in 1..=3 {
        assert_eq!(world.run(f, &[1, 2, 3, 4, 5]), bare);
        assert_eq!(probe.counters().hits, round);
        let wants = |yes: bool| if yes { round as usize } else { 0 };
        assert_eq!(pre.load(SeqCst), wants(matches!(with, With::Pre | With::Both)));
        assert_eq!(post.load(SeqCst), wants(matches!(with, With::Post | With::Both)));
    }
    assert_eq!(world.host().current().0.depth(), 0);
    assert!(!world.host().current().0.is_inside());
}

#[test]
fn hit_1_a_probe_on_every_instruction_at_once() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = world.function("g", &[&world.call(f)[..], &[PUSH, 0, LOAD, 2, 3, ADD, 0, 1, HALT]].concat());
    let bare = world.run(g, &[1, 2, 3]);
    let places = PLUS_FIVE.map(|offset| at(f, offset)).into_iter();
    let places = places.chain([0, 5].map(|offset| at(g, offset)));
    let probes: Vec<_> = places.map(|place| K::at(place).pre(|_| ()).post(|_| ())).collect();
    let probes = world.probes.register_all(probes).unwrap();
    let probed = world.run(g, &[1, 2, 3]);
    assert_eq!(probed.0, bare.0);
    assert_eq!(probed.1.r[..1], bare.1.r[..1]);
    assert!(probes.iter().all(|probe| probe.counters().hits == 1), "{probes:?}");
}

#[test]
fn hit_2_pre_handlers_see_the_place_and_may_change_registers() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = K::at(at(f, 3)).pre(move |hit: &mut Hit<'_, Toy>| {
        assert_eq!((hit.pc().as_usize(), hit.regs().pc), (f + 3, f + 3));
        let has_arguments = Toy::CALLS.is_some();
        assert_eq!(hit.argument(0), has_arguments.then_some(2));
        assert_eq!(hit.argument(4), has_arguments.then_some(50), "arguments on the stack are read");
        hit.regs_mut().r[0] = 100;
    });
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(world.value(f, &[1, 0, 0, 40, 50]), 104);
    assert_eq!(probe.counters().hits, 1);
}

#[rstest]
fn hit_2_a_redirection_skips_the_instruction_and_post_handlers(#[values(0, 3, 11)] offset: isize) {
    let world = World::new();
    let f = plus_five(world, "f");
    let posts = counter();
    let probe = K::at(at(f, offset))
        .pre(move |hit: &mut Hit<'_, Toy>| {
            hit.regs_mut().pc = f + 15;
            Flow::Redirected
        })
        .post(move |_| bump(posts));
    let probe = world.probes.register(probe).unwrap();
    let sum = [0, 1, 5][[0, 3, 11].iter().position(|known| *known == offset).unwrap()];
    assert_eq!(world.value(f, &[10]), 10 + sum);
    assert_eq!((posts.load(SeqCst), probe.counters().hits), (0, 1));
}

#[rstest]
#[case::boosted(0, 3)]
#[case::stepped(3, 5)]
#[case::corrected(5, 8)]
#[case::simulated(11, 15)]
fn hit_3_post_handlers_see_the_next_instruction(#[case] offset: isize, #[case] next: usize) {
    let world = World::new();
    let f = plus_five(world, "f");
    let seen = counter();
    let probe = K::at(at(f, offset)).post(move |hit: &mut Hit<'_, Toy>| {
        assert_eq!(hit.pc().as_usize(), f + offset as usize);
        seen.store(hit.regs().pc - f, SeqCst);
        assert!(!hit.regs().is_masked, "interruptions are let in again");
        hit.regs_mut().r[3] = 9;
    });
    let _probe = world.probes.register(probe).unwrap();
    let (end, regs) = world.run(f, &[1, 0, 0]);
    // r5 is 0, so BRANCH goes on at the NOP; with offset 11 that is 14.
    let next = if offset == 11 { 14 } else { next };
    assert_eq!((end, seen.load(SeqCst), regs.r[0], regs.r[3]), (End::Returned, next, 6, 9));
}

#[test]
fn hit_4_a_hit_neither_allocates_nor_locks() {
    let world = World::new();
    let f = plus_five(world, "f");
    let mut probes = Vec::new();
    for offset in PLUS_FIVE {
        probes.push(world.probes.register(K::at(at(f, offset)).pre(|_| ()).post(|_| ())).unwrap());
        probes.push(world.probes.register(K::at(at(f, offset)).pre(|_| ())).unwrap());
    }
    let _ret =
        Toy::CALLS.map(|_| world.probes.register(R::at("f").entry(|_| Some(7_u64)).exit(|_, _| ())).unwrap());
    let mut cpu = world.cpu(f, &[1]);
    cpu.trace.reserve(1000);
    // What the host keeps for this thread.
    let _ = world.host().current();
    // Registering holds this lock; a hit that took it would wait for ever.
    world.probes.freeze();
    let end = alloc_count::forbid(|| cpu.run(1000));
    // SAFETY: frozen above.
    unsafe { world.probes.thaw() };
    assert_eq!((end, cpu.regs.r[0]), (End::Returned, 6));
    assert!(probes.iter().all(|probe| probe.counters().hits == 1));
}

#[test]
fn hit_4_a_hit_with_many_probes_reads_as_much_as_with_one() {
    let world = World::new();
    let f = plus_five(world, "f");
    let code: Vec<u8> = std::iter::repeat_n(NOP, 20_000).chain([RETURN]).collect();
    let big = world.function("big", &code);
    let _many =
        world.probes.register_all((0..20_000).map(|offset| K::at(at(big, offset)).pre(|_| ()))).unwrap();
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    assert_eq!(cpu.run(100), End::Returned);
    // Seven instructions, one trap, one slot with its jump back.
    assert_eq!(cpu.trace.len(), 7 + 2);
    assert_eq!(probe.counters().hits, 1);
}

#[test]
fn hit_5_a_foreign_breakpoint_is_passed_on_untouched() {
    let world = World::new();
    let f = plus_five(world, "f");
    let _probe = world.probes.register(K::at("f")).unwrap();
    let foreign = world.function("foreign", &[NOP, BREAK, RETURN]);
    let (end, regs) = world.run(foreign, &[1, 2, 3]);
    assert_eq!(end, End::Trapped(foreign + 1));
    assert_eq!((regs.pc, regs.r[0]), (foreign + 1, 1));
    assert_eq!(world.value(f, &[1]), 6);
}

#[test]
fn hit_5_a_breakpoint_removed_a_moment_ago_is_retried() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at("f")).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    // The trap has been taken, but the core not reached, when the probe goes.
    cpu.regs.pc = f + 1;
    drop(probe);
    assert_eq!(world.probes.traps().breakpoint(&mut cpu.regs), probe_core::traps::Trap::Handled);
    assert_eq!(cpu.regs.pc, f);
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(cpu.regs.r[0], 6);
}

#[test]
fn hit_5_a_foreign_breakpoint_where_a_probe_was_is_passed_on() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    drop(probe);
    world.put(f, &[BREAK]);
    assert_eq!(world.run(f, &[1]).0, End::Trapped(f));
    world.put(f, &[ADD]);
    assert_eq!(world.value(f, &[1]), 6);
}

#[test]
fn hit_5_a_breakpoint_that_comes_and_goes_between_two_looks_is_not_foreign() {
    let world = World::new();
    let f = plus_five(world, "f");
    let mut cpu = world.cpu(f, &[1]);
    // The trap has been taken when the probe of an earlier time goes; the core finds nothing in its table.
    cpu.regs.pc = f + 1;
    // From then on, the breakpoint stands there whenever the text is read, and does not when the table is.
    let mut is_registered = false;
    let mut looks = 0;
    *world.host().text_hook.lock().unwrap() = Some(Box::new(move |moment| {
        let other = std::thread::spawn(move || match moment {
            Moment::BeforeRead if !is_registered => {
                world.probes.register(K::at("f")).unwrap().leak();
            }
            Moment::BeforeRead => world.probes.switch(Switch::On).unwrap(),
            _ => world.probes.switch(Switch::Off).unwrap(),
        });
        other.join().unwrap();
        is_registered = true;
        looks += 1;
        assert!(looks < 100, "it looks again and again");
    }));
    assert_eq!(world.probes.traps().breakpoint(&mut cpu.regs), probe_core::traps::Trap::Handled);
    *world.host().text_hook.lock().unwrap() = None;
    assert_eq!(cpu.regs.pc, f);
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(cpu.regs.r[0], 6);
}

#[test]
fn hit_5_a_foreign_breakpoint_in_what_changes_text_is_passed_on() {
    let world = World::new();
    plus_five(world, "f");
    let foreign = world.function("foreign", &[NOP, BREAK, RETURN]);
    let ends = Log::new();
    *world.host().text_hook.lock().unwrap() = Some(Box::new(move |moment| {
        if matches!(moment, Moment::BeforeWrite | Moment::AfterWrite) {
            let (end, _) = world.run(foreign, &[]);
            ends.add(format!("{moment:?} {}", end == End::Trapped(foreign + 1)));
        }
    }));
    let probe = world.probes.register(K::at("f")).unwrap();
    drop(probe);
    *world.host().text_hook.lock().unwrap() = None;
    let ends = ends.take();
    assert!(ends.len() >= 4 && ends.iter().all(|end| end.ends_with("true")), "{ends:?}");
}

/// Where a nested hit happens.
#[rstest]
fn hit_6_a_nested_hit_is_missed_and_executed(
    #[values("pre", "post", "fault")] place: &'static str,
    #[values(0, 3, 5, 11)] offset: isize,
) {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let faulty = world.function("faulty", &[LOAD, 1, 0, RETURN]);
    let inner = world.probes.register(K::at(at(g, offset)).pre(never).post(never)).unwrap();
    let results = Log::new();
    let nest = move || results.add(world.value(g, &[10]).to_string());
    let outer = match place {
        "pre" => world.probes.register(K::at("f").pre(move |_| nest())),
        "post" => world.probes.register(K::at("f").post(move |_| nest())),
        _ => world.probes.register(K::at("faulty").fault(move |hit, _| {
            nest();
            hit.regs_mut().pc += 3;
            Answer::Handled
        })),
    };
    let outer = outer.unwrap();
    for round in 1..=3 {
        match place {
            "fault" => assert_eq!(world.value(faulty, &[0]), 0),
            _ => assert_eq!(world.value(f, &[1]), 6),
        }
        assert_eq!(results.take(), ["15"]);
        assert_eq!((inner.counters().hits, inner.counters().missed_nested), (0, round));
        assert_eq!((outer.counters().hits, outer.counters().missed_nested), (round, 0));
    }
    assert_eq!(world.host().current().0.depth(), 0);
}

#[test]
fn hit_6_a_handler_that_hits_its_own_probe_is_missed_by_every_probe_there() {
    let world = World::new();
    let f = plus_five(world, "f");
    let first = world.probes.register(K::at("f").pre(move |_| assert_eq!(world.value(f, &[2]), 7))).unwrap();
    let second = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    let disabled = world.probes.register(K::at("f").disabled()).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    for probe in [&first, &second] {
        assert_eq!((probe.counters().hits, probe.counters().missed_nested), (1, 1));
    }
    assert_eq!(disabled.counters().missed_nested, 0);
}

/// Runs `f` up to its ADD's slot and interrupts it there with another run of itself, `depth` levels deep.
fn interrupted_add(world: &'static World, f: usize, depth: usize) {
    let mut cpu = world.cpu(f, &[1]);
    cpu.run(1);
    assert_ne!(cpu.regs.pc, f, "in the slot");
    if depth > 1 {
        interrupted_add(world, f, depth - 1);
    }
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(cpu.regs.r[0], 6);
}

#[rstest]
fn hit_6_beyond_the_documented_depth_the_instruction_is_still_executed(
    #[values(1, 2, 20)] more: usize,
    #[values(0, 11)] offset: isize,
) {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at(at(f, 0)).pre(|_| ()).post(|_| ())).unwrap();
    let other = world.probes.register(K::at(at(f, offset)).post(|_| ())).unwrap();
    interrupted_add(world, f, MAX_DEPTH + more);
    assert_eq!(probe.counters().hits + probe.counters().missed_nested, (MAX_DEPTH + more) as u64);
    assert_eq!(world.host().current().0.depth(), 0);
    drop((probe, other));
    assert_eq!(world.value(f, &[1]), 6);
}

#[test]
fn hit_6_without_room_for_a_context_handlers_are_missed_and_the_program_goes_on() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probes: Vec<_> = PLUS_FIVE
        .map(|offset| K::at(at(f, offset)).pre(never).post(never))
        .into_iter()
        .filter(|_| true)
        .collect();
    let probes = world.probes.register_all(probes).unwrap();
    let ret = Toy::CALLS.map(|_| world.probes.register(R::at("f")).unwrap());
    world.host().has_contexts.store(false, SeqCst);
    assert_eq!(world.value(f, &[1]), 6);
    world.host().has_contexts.store(true, SeqCst);
    for (index, probe) in probes.iter().enumerate() {
        assert_eq!(probe.counters().missed_nested, 1, "{index}");
        assert_eq!(probe.counters().hits, 0);
    }
    assert!(ret.is_none_or(|ret| ret.counters().missed_nested == 1));
}

#[test]
fn hit_8_counters_of_every_cause_are_exact() {
    let world = World::new();
    let f = world.function("f", &[LOAD, 1, 0, RETURN]);
    let good = world.arena() + DATA;
    let answer = counter();
    let probe = K::at("f").fault(move |hit: &mut Hit<'_, Toy>, _| {
        assert_eq!(hit.counters().faults as usize, answer.load(SeqCst) + 1);
        Answer::NotHandled
    });
    let probe = world.probes.register(probe).unwrap();
    for round in 0..5 {
        assert_eq!(world.run(f, &[good]).0, End::Returned);
        let (end, _) = world.run(f, &[8]);
        assert_eq!(end, End::Faulted(MemFault { addr: 8, access: Access::Read }));
        answer.store(round + 1, SeqCst);
        assert_eq!(
            (probe.counters().hits as usize, probe.counters().faults as usize),
            (2 * round + 2, round + 1)
        );
    }
}

#[rstest]
#[case::boosted(&[LOAD, 1, 0, RETURN], false)]
#[case::stepped(&[LOAD, 1, 0, RETURN], true)]
#[case::simulated(&[PUSH, 0, RETURN], false)]
#[case::simulated_with_post(&[PUSH, 0, RETURN], true)]
fn hit_9_a_fault_of_the_instruction_looks_as_if_it_had_happened_in_place(
    #[case] code: &[u8],
    #[case] has_post: bool,
) {
    let world = World::new();
    let f = world.function("f", code);
    let run = |sp: usize| {
        let mut cpu = world.cpu(f, &[8]);
        // A stack that cannot be written.
        cpu.regs.sp = sp;
        (cpu.run(100), cpu.regs)
    };
    let bare = run(16);
    assert!(matches!(bare.0, End::Faulted(_)));
    let mut probe = K::at("f").fault(move |hit: &mut Hit<'_, Toy>, trap| {
        assert_eq!((hit.regs().pc, trap), (f, 14));
        Answer::NotHandled
    });
    if has_post {
        probe = probe.post(|_| panic!("there is no after"));
    }
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(run(16), bare);
    assert_eq!(probe.counters().faults, 1);
    assert_eq!(world.host().current().0.depth(), 0);
    let handled = world
        .probes
        .register(K::at("f").fault(move |hit: &mut Hit<'_, Toy>, _| {
            hit.regs_mut().pc = world.arena();
            Answer::Handled
        }))
        .unwrap();
    assert_eq!(run(16).0, End::Returned);
    assert_eq!((probe.counters().faults, handled.counters().faults), (1, 1));
}

#[test]
fn hit_9_a_fault_in_a_handler_goes_to_its_fault_handler() {
    let world = World::new();
    let f = plus_five(world, "f");
    let log = Log::new();
    let probe = K::at("f")
        .pre(move |_| {
            let mut regs = ToyRegs { pc: 0x1234, ..ToyRegs::default() };
            log.add(format!("{:?}", world.probes.traps().fault(&mut regs, 6)));
            log.add(format!("{:#x}", regs.pc));
        })
        .fault(move |hit: &mut Hit<'_, Toy>, trap| {
            // A fault in the fault handler is nobody's.
            let mut regs = ToyRegs::default();
            log.add(format!("trap {trap}, then {:?}", world.probes.traps().fault(&mut regs, 7)));
            hit.regs_mut().pc += 2;
            Answer::Handled
        });
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(log.take(), ["trap 6, then NotOurs", "Handled", "0x1236"]);
    assert_eq!(probe.counters().faults, 1);
    let mut regs = ToyRegs::default();
    assert_eq!(world.probes.traps().fault(&mut regs, 6), probe_core::traps::FaultVerdict::NotOurs);
}

#[test]
fn hit_10_where_all_probes_are_disabled_no_breakpoint_stands() {
    let world = World::new();
    let f = plus_five(world, "f");
    let text = world.text();
    let [first, second] = [(); 2].map(|()| world.probes.register(K::at("f").pre(|_| ())).unwrap());
    first.disable().unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    second.disable().unwrap();
    assert!(world.text() == text);
    assert_eq!(world.value(f, &[1]), 6);
    first.enable().unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!((first.counters().hits, second.counters().hits), (1, 1));
}

#[test]
fn hit_12_an_interruption_between_breakpoint_and_post_handler_is_harmless() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let log = Log::new();
    let name = move |name: &'static str| {
        let probe = K::at(at(if name == "f" { f } else { g }, 3));
        world.probes.register(probe.pre(move |_| log.add(name)).post(move |_| log.add(name))).unwrap()
    };
    let (outer, inner) = (name("f"), name("g"));
    let mut cpu = world.cpu(f, &[1]);
    for _ in 0..200 {
        // At every step of the way, another function with a probe runs.
        assert_eq!(world.value(g, &[1]), 6);
        if cpu.run(1) == End::Returned {
            break;
        }
    }
    assert_eq!(cpu.regs.r[0], 6);
    assert_eq!(outer.counters().hits, 1);
    assert!(inner.counters().missed_nested >= 1, "inside the slot it is nested");
    assert_eq!(log.take().iter().filter(|event| *event == "f").count(), 2);
}

#[test]
fn hit_12_a_probe_that_comes_between_pre_and_post_does_not_see_the_post() {
    let world = World::new();
    let f = plus_five(world, "f");
    let _old = world.probes.register(K::at(at(f, 3)).post(|_| ())).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    while !cpu.regs.is_masked {
        cpu.run(1);
    }
    let posts = counter();
    let new = world.probes.register(K::at(at(f, 3)).post(move |_| bump(posts))).unwrap();
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!((posts.load(SeqCst), new.counters().hits), (0, 0));
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!((posts.load(SeqCst), new.counters().hits), (1, 1));
}

#[test]
fn hit_12_a_probe_that_goes_while_it_is_stepped_is_freed_later() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at(at(f, 3)).post(|_| panic!("it has gone"))).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    while !cpu.regs.is_masked {
        cpu.run(1);
    }
    probe.unregister().unwrap();
    assert_eq!(world.host().live_chunks.load(SeqCst), 1, "the slot is kept");
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(cpu.regs.r[0], 6);
    drop(world.probes.register(K::at(at(f, 11))).unwrap());
    assert_eq!(world.host().live_chunks.load(SeqCst), 0, "and freed by a later call");
}

#[test]
fn hit_12_a_slot_with_a_frame_keeps_its_breakpoint_when_the_post_handler_goes() {
    let world = World::new();
    let f = plus_five(world, "f");
    let plain = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    for _ in 0..2 * MAX_DEPTH {
        let with_post = world.probes.register(K::at("f").post(never)).unwrap();
        let mut cpu = world.cpu(f, &[1]);
        assert_eq!(cpu.run(1), End::Timeout);
        assert!(cpu.regs.is_masked, "in the slot, with a frame");
        drop(with_post);
        // Another one comes, for which a jump would do.
        let another = world.probes.register(K::at("f").pre(|_| ())).unwrap();
        assert_eq!(cpu.run(100), End::Returned);
        assert_eq!((cpu.regs.r[0], cpu.regs.is_masked, world.host().current().0.depth()), (6, false, 0));
        drop(another);
    }
    // When nobody is in it any more, it jumps again: breakpoint, ADD, jump back, and six instructions more.
    let mut cpu = world.cpu(f, &[1]);
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(cpu.trace.len(), 9);
    assert_eq!(plain.counters().hits, 2 * MAX_DEPTH as u64 + 1);
}
