//! HIT_6, HIT_9 and HIT_11 where a backend does more than the smallest one: it borrows registers, runs system
//! calls, follows calls.

use super::*;
use probe_core::limits::MAX_DEPTH;
use rstest::rstest;

/// Where a nested hit happens.
#[rstest]
fn hit_6_a_nested_hit_in_a_return_probe_is_missed_and_executed(
    #[values("entry", "exit")] place: &'static str,
    #[values(0, 3, 5, 11)] offset: isize,
) {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let never = |hit: &mut Hit<'_, Toy>| panic!("{hit:?}");
    let inner = world.probes.register(K::at(at(g, offset)).pre(never).post(never)).unwrap();
    let results = Log::new();
    let nest = move || results.add(world.value(g, &[10]).to_string());
    let outer = match place {
        "entry" => world.probes.register(
            R::at("f")
                .entry(move |_| {
                    nest();
                    Some(())
                })
                .exit(|_, ()| ()),
        ),
        _ => world.probes.register(R::at("f").exit(move |_, ()| nest())),
    };
    let outer = outer.unwrap();
    for round in 1..=3 {
        assert_eq!(world.value(f, &[1]), 6);
        assert_eq!(results.take(), ["15"]);
        assert_eq!((inner.counters().hits, inner.counters().missed_nested), (0, round));
        assert_eq!((outer.counters().hits, outer.counters().missed_nested), (round, 0));
    }
    assert_eq!(world.host().current().0.depth(), 0);
}

thread_local! {
    static LEVEL: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Runs `f` up to its BORROW's slot and interrupts it there with another run of itself, `depth` levels deep.
fn interrupted(world: &'static World, f: usize, depth: usize) -> usize {
    let mut cpu = world.cpu(f, &[1]);
    while cpu.regs.r[6] == 0 && cpu.run(1) == End::Timeout {}
    assert!(cpu.regs.is_masked || depth <= LEVEL.get(), "in the slot, with r6 borrowed");
    let inner = if depth > 1 { interrupted(world, f, depth - 1) } else { 0 };
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!((cpu.regs.r[0], cpu.regs.r[6]), (6, 0));
    inner + 1
}

#[test]
fn hit_6_hits_inside_slots_nest_to_the_documented_depth() {
    const { assert!(MAX_DEPTH >= 4) };
    let world = World::new();
    let f = plus_five(world, "f");
    let posts = counter();
    let probe = world.probes.register(K::at(at(f, 3)).pre(|_| ()).post(move |_| bump(posts))).unwrap();
    for depth in 1..=MAX_DEPTH {
        let before = probe.counters();
        assert_eq!(interrupted(world, f, depth), depth);
        let after = probe.counters();
        assert_eq!(after.hits - before.hits, 1, "depth {depth}");
        assert_eq!(after.missed_nested - before.missed_nested, depth as u64 - 1);
        assert_eq!(world.host().current().0.depth(), 0);
    }
    assert_eq!(posts.load(SeqCst), MAX_DEPTH);
}

#[rstest]
fn hit_6_beyond_the_documented_depth_borrowed_registers_come_back(
    #[values(1, 2, 16)] more: usize,
    #[values(true, false)] has_contexts: bool,
) {
    let world = World::new();
    let f = plus_five(world, "f");
    let _probe = world.probes.register(K::at(at(f, 3)).post(|_| ())).unwrap();
    world.host().has_contexts.store(has_contexts, SeqCst);
    let depth = if has_contexts { MAX_DEPTH + more } else { more };
    assert_eq!(interrupted(world, f, depth), depth);
    // None of what was borrowed is kept.
    assert_eq!(interrupted(world, f, depth), depth);
}

#[rstest]
fn hit_6_a_fault_beyond_the_documented_depth_gives_back_what_was_borrowed(
    #[values(true, false)] has_contexts: bool,
) {
    let world = World::new();
    let f = plus_five(world, "f");
    let _probe = world.probes.register(K::at(at(f, 3)).post(|_| ())).unwrap();
    world.host().has_contexts.store(has_contexts, SeqCst);
    let mut cpus = Vec::new();
    for depth in 0..MAX_DEPTH + 2 {
        let mut cpu = world.cpu(f, &[1]);
        cpu.regs.r[6] = 44 + depth;
        while cpu.regs.r[6] == 44 + depth {
            assert_eq!(cpu.run(1), End::Timeout);
        }
        cpus.push(cpu);
    }
    for (depth, cpu) in cpus.iter_mut().enumerate().rev() {
        assert!(cpu.regs.is_masked);
        assert_eq!(world.probes.traps().fault(&mut cpu.regs, 14), probe_core::traps::FaultVerdict::Restored);
        assert_eq!((cpu.regs.pc, cpu.regs.r[6], cpu.regs.is_masked), (f + 3, 44 + depth, false));
    }
}

#[test]
fn hit_6_a_borrowing_instruction_beyond_all_room_waits_for_another_ones_end() {
    let world = World::new();
    let f = plus_five(world, "f");
    let _probe = world.probes.register(K::at(at(f, 3)).post(|_| ())).unwrap();
    world.host().has_contexts.store(false, SeqCst);
    let mut cpus: Vec<_> = (0..17).map(|_| world.cpu(f, &[1])).collect();
    for cpu in &mut cpus {
        for _ in 0..20 {
            if cpu.regs.r[6] == 0 {
                assert_eq!(cpu.run(1), End::Timeout);
            }
        }
    }
    let (last, others) = cpus.split_last_mut().unwrap();
    assert_eq!((last.regs.pc, last.regs.r[6]), (f + 3, 0), "no room");
    for cpu in others {
        assert_eq!(cpu.run(100), End::Returned);
        assert_eq!((cpu.regs.r[0], cpu.regs.r[6]), (6, 0));
    }
    assert_eq!(last.run(100), End::Returned);
    assert_eq!((last.regs.r[0], last.regs.r[6]), (6, 0));
}

#[test]
fn hit_9_a_borrowed_register_comes_back_with_a_fault() {
    let world = World::new();
    let f = plus_five(world, "f");
    let _probe = world.probes.register(K::at(at(f, 3)).post(|_| ())).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    cpu.regs.r[6] = 44;
    while cpu.regs.r[6] == 44 {
        assert_eq!(cpu.run(1), End::Timeout);
    }
    assert!(cpu.regs.is_masked);
    assert_eq!(world.probes.traps().fault(&mut cpu.regs, 14), probe_core::traps::FaultVerdict::Restored);
    assert_eq!((cpu.regs.pc, cpu.regs.r[6], cpu.regs.is_masked), (f + 3, 44, false));
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!((cpu.regs.r[0], cpu.regs.r[6]), (6, 44));
}

#[test]
fn hit_11_a_system_call_wakes_twice_and_both_go_on() {
    let world = World::new();
    let f = world.function("f", &[SYSTEM, 0, ADD, 0, 1, RETURN]);
    static CHILD: Mutex<Option<ToyRegs>> = Mutex::new(None);
    *world.host().system_hook.lock().unwrap() = Some(|_, regs| *CHILD.lock().unwrap() = Some(*regs));
    let bare = world.run(f, &[1]);
    CHILD.lock().unwrap().take().unwrap();
    let posts = counter();
    let probe = world.probes.register(K::at("f").post(move |_| bump(posts))).unwrap();
    assert_eq!(world.run(f, &[1]), bare);
    // The child wakes in the slot, on a context that knows of no hit.
    let regs = CHILD.lock().unwrap().take().unwrap();
    assert_ne!(regs.pc & !(CHUNK - 1), f & !(CHUNK - 1));
    assert!(!regs.is_masked, "a system call may wait for a signal");
    let mut child = world.cpu(f, &[]);
    let sp = child.regs.sp;
    child.regs = ToyRegs { sp, ..regs };
    assert_eq!(child.run(100), End::Returned);
    assert_eq!((child.regs.r[0], child.regs.r[7]), (bare.1.r[0], bare.1.r[7]));
    assert_eq!((probe.counters().hits, posts.load(SeqCst)), (1, 2));
    // It is still found after the probe has gone.
    drop(probe);
    child.regs = ToyRegs { sp, ..regs };
    assert_eq!(child.run(100), End::Returned);
    assert_eq!(child.regs.r[7], bare.1.r[7]);
}

#[test]
fn hit_11_a_system_call_that_never_comes_back_leaves_nothing_behind() {
    let world = World::new();
    let f = world.function("f", &[SYSTEM, 0, RETURN]);
    let probe = world.probes.register(K::at("f").pre(|_| ()).post(|_| ())).unwrap();
    for round in 1..=20 {
        let mut cpu = world.cpu(f, &[]);
        cpu.run(2);
        drop(cpu);
        assert_eq!(probe.counters().hits, round);
    }
    assert_eq!((probe.counters().missed_nested, world.host().current().0.depth()), (0, 0));
}
