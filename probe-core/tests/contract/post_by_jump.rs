//! Post handlers of optimised probes: what the second trap of a step promises, a jump keeps.

use super::*;
use probe_core::handler::{Answer, Flow};
use std::sync::atomic::AtomicU64;
use std::thread;

/// An instruction that is simulated at a trap, and one that runs in a slot: both add 6 in all.
const BODIES: [(&str, &[u8]); 2] = [
    ("simulated", &[ENTRY, ADD, 0, 6, NOP, RETURN]),
    ("copied", &[ADD, 0, 1, NOP, ADD, 0, 2, ADD, 0, 3, RETURN]),
];

fn is_optimised(world: &'static World, f: usize) {
    assert!(world.probes.jumps().lay().is_ok());
    assert!((DETOUR_JUMP..=LAST_DETOUR_JUMP).contains(&world.bytes(f, 1)[0]));
}

/// A probe on the very first byte, which a checked place would go past.
fn on(f: usize) -> K {
    // SAFETY: an instruction starts there.
    K::at(unsafe { Place::unchecked(f.into()) })
}

/// No frame is left, and nobody is pinned.
fn is_idle(world: &World) {
    let (context, _) = world.host().current();
    assert_eq!((context.depth(), context.is_inside(), world.host().pins.load(SeqCst)), (0, false, 0));
}

#[test]
fn hit_3_the_post_handler_of_a_jump_sees_what_the_instruction_has_done() {
    for (name, body) in BODIES {
        let world = World::new();
        let f = world.function(name, body);
        let first = len_of(body[0]).unwrap();
        let log = Log::new();
        let _probe = world.probes.register(
            on(f)
                .pre(move |hit: &mut Hit<'_, Toy>| {
                    log.add(format!("pre {} {}", hit.regs().pc - f, hit.regs().r[0]))
                })
                .post(move |hit: &mut Hit<'_, Toy>| {
                    log.add(format!("post {} {}", hit.regs().pc - f, hit.regs().r[0]));
                }),
        );
        is_optimised(world, f);
        assert_eq!(world.value(f, &[1]), 7, "{name}");
        let after = if name == "copied" { 2 } else { 1 };
        assert_eq!(log.take(), ["pre 0 1".to_owned(), format!("post {first} {after}")], "{name}");
        is_idle(world);
    }
}

#[test]
fn hit_3_what_the_post_handler_of_a_jump_changes_holds() {
    for (name, body) in BODIES {
        let world = World::new();
        let f = world.function(name, body);
        let other = world.function("other", &[SET, 0, 7, 0, RETURN]);
        let way: &'static AtomicUsize = counter();
        let _probe =
            world.probes.register(on(f).post(move |hit: &mut Hit<'_, Toy>| match way.load(SeqCst) {
                0 => hit.regs_mut().r[0] += 100,
                1 => hit.regs_mut().pc = other,
                _ => {
                    let home = probe_core::arch::Memory::read_usize(&hit.memory(), hit.regs().sp).unwrap();
                    probe_core::arch::Memory::write_usize(&hit.memory(), hit.regs().sp - 32, home).unwrap();
                    hit.regs_mut().sp -= 32;
                }
            }));
        is_optimised(world, f);
        assert_eq!(world.value(f, &[1]), 107, "{name}");
        bump(way);
        assert_eq!(world.value(f, &[1]), 7, "{name}: redirected");
        bump(way);
        let (end, regs) = world.run(f, &[1]);
        let (_, bare) = world.run(world.function("bare", body), &[1]);
        assert_eq!((end, regs.r[0], regs.sp), (End::Returned, 7, bare.sp - 32), "{name}");
        is_idle(world);
    }
}

#[test]
fn hit_2_a_redirection_by_pre_leaves_the_post_handler_of_a_jump_out() {
    for (name, body) in BODIES {
        let world = World::new();
        let f = world.function(name, body);
        let other = world.function("other", &[SET, 0, 7, 0, RETURN]);
        let posts = counter();
        let pre = move |hit: &mut Hit<'_, Toy>| {
            hit.regs_mut().pc = other;
            Flow::Redirected
        };
        let _probe = world.probes.register(on(f).pre(pre).post(move |_| bump(posts)));
        is_optimised(world, f);
        assert_eq!((world.value(f, &[1]), posts.load(SeqCst)), (7, 0), "{name}");
        is_idle(world);
    }
}

#[test]
fn hit_2_a_pre_handler_may_move_the_stack_pointer_before_a_post_handler_of_a_jump() {
    for (name, body) in BODIES {
        let world = World::new();
        let f = world.function(name, body);
        let (lowered, raised) = (counter(), counter());
        let pre = |hit: &mut Hit<'_, Toy>| {
            let home = probe_core::arch::Memory::read_usize(&hit.memory(), hit.regs().sp).unwrap();
            probe_core::arch::Memory::write_usize(&hit.memory(), hit.regs().sp - 32, home).unwrap();
            lowered.store(hit.regs().sp - 32, SeqCst);
            hit.regs_mut().sp -= 32;
        };
        let post = |hit: &mut Hit<'_, Toy>| {
            assert_eq!(hit.regs().sp, lowered.load(SeqCst));
            bump(raised);
        };
        let probe = world.probes.register(on(f).pre(pre).post(post)).unwrap();
        is_optimised(world, f);
        for calls in 1..=20 {
            assert_eq!((world.value(f, &[1]), raised.load(SeqCst)), (7, calls), "{name}");
            is_idle(world);
        }
        assert_eq!((probe.counters().hits, probe.counters().missed_nested), (20, 0));
    }
}

#[test]
fn hit_6_a_jump_with_a_post_handler_is_missed_inside_a_handler() {
    for (name, body) in BODIES {
        let world = World::new();
        let (f, g) = (world.function(name, body), world.function("g", BODIES[1].1));
        let posts = counter();
        let inner = world.probes.register(on(f).post(move |_| bump(posts))).unwrap();
        let call = move || assert_eq!(world.value(f, &[5]), 11);
        let outer = world.probes.register(on(g).pre(move |_| call()).post(move |_| call())).unwrap();
        assert_eq!(world.probes.jumps().lay(), Ok(2));
        assert_eq!(world.value(g, &[1]), 7);
        let counters = inner.counters();
        assert_eq!((counters.hits, counters.missed_nested, posts.load(SeqCst)), (0, 2, 0), "{name}");
        assert_eq!((world.value(f, &[1]), posts.load(SeqCst)), (7, 1), "{name}");
        assert_eq!(outer.counters().hits, 1);
        is_idle(world);
    }
}

#[test]
fn hit_6_a_hit_between_pre_and_post_of_a_jump_leaves_that_to_its_owner() {
    // As an interrupt's handler does: the same context runs the same function before the copy has ended.
    let world = World::new();
    let f = world.function("f", BODIES[1].1);
    let posts = counter();
    let probe = world.probes.register(on(f).post(move |_| bump(posts))).unwrap();
    is_optimised(world, f);
    let mut cpu = world.cpu(f, &[1]);
    // The jump, the trampoline's call.
    (0..2).for_each(|_| cpu.step().unwrap());
    assert_eq!(world.host().current().0.depth(), 1);
    assert_eq!((world.value(f, &[5]), posts.load(SeqCst)), (11, 0));
    assert_eq!((cpu.run(100), cpu.regs.r[0], posts.load(SeqCst)), (End::Returned, 7, 1));
    assert_eq!((probe.counters().hits, probe.counters().missed_nested), (1, 1));
    is_idle(world);
}

#[test]
fn hit_6_without_a_context_a_jump_with_a_post_handler_is_missed() {
    for (name, body) in BODIES {
        let world = World::new();
        let f = world.function(name, body);
        let posts = counter();
        let probe = world.probes.register(on(f).post(move |_| bump(posts))).unwrap();
        is_optimised(world, f);
        world.host().has_contexts.store(false, SeqCst);
        assert_eq!((world.value(f, &[1]), posts.load(SeqCst)), (7, 0), "{name}");
        world.host().has_contexts.store(true, SeqCst);
        assert_eq!((probe.counters().hits, probe.counters().missed_nested), (0, 1), "{name}");
        is_idle(world);
    }
}

#[test]
fn reg_13_no_post_handler_runs_after_unregistering_between_the_two() {
    let world = World::new();
    let f = world.function("f", BODIES[1].1);
    let (early, late) = (counter(), counter());
    let kept = world.probes.register(on(f).pre(|_| ())).unwrap();
    let probe = world.probes.register(on(f).post(move |_| bump(early))).unwrap();
    is_optimised(world, f);
    let mut cpu = world.cpu(f, &[1]);
    (0..2).for_each(|_| cpu.step().unwrap());
    drop(probe);
    // One that did not see the hit is not called after it.
    let younger = world.probes.register(on(f).post(move |_| bump(late))).unwrap();
    assert!(world.probes.jumps().lay().is_ok());
    assert_eq!((cpu.run(100), cpu.regs.r[0]), (End::Returned, 7));
    assert_eq!((early.load(SeqCst), late.load(SeqCst)), (0, 0));
    is_idle(world);
    assert_eq!((world.value(f, &[1]), late.load(SeqCst)), (7, 1));
    assert_eq!((kept.counters().hits, younger.counters().hits), (2, 1));
}

#[test]
fn reg_13_everything_may_go_between_the_two() {
    let world = World::new();
    let before = world.text();
    let f = world.function("f", BODIES[1].1);
    let posts = counter();
    let probe = world.probes.register(on(f).post(move |_| bump(posts))).unwrap();
    is_optimised(world, f);
    let mut cpu = world.cpu(f, &[1]);
    (0..2).for_each(|_| cpu.step().unwrap());
    drop(probe);
    assert_eq!((cpu.run(100), cpu.regs.r[0], posts.load(SeqCst)), (End::Returned, 7, 0));
    is_idle(world);
    assert_eq!(before, world.text()[..before.len()]);
    assert_eq!(world.value(f, &[1]), 7);
}

#[test]
fn hit_1_a_context_that_is_late_in_a_detour_without_the_second_call_loses_no_post_handler() {
    let world = World::new();
    let f = world.function("f", BODIES[1].1);
    let old = world.probes.register(on(f).pre(|_| ())).unwrap();
    is_optimised(world, f);
    let mut cpu = world.cpu(f, &[1]);
    // Behind the jump, before the trampoline's call.
    cpu.step().unwrap();
    let posts = counter();
    let new = world.probes.register(on(f).post(move |_| bump(posts))).unwrap();
    assert_eq!((cpu.run(100), cpu.regs.r[0], posts.swap(0, SeqCst)), (End::Returned, 7, 1));
    assert_eq!((old.counters().hits, new.counters().hits), (1, 1));
    is_optimised(world, f);
    assert_eq!((world.value(f, &[1]), posts.load(SeqCst)), (7, 1));
    is_idle(world);
}

#[test]
fn hit_9_a_fault_of_the_instruction_before_a_post_handler_of_a_jump() {
    let world = World::new();
    // LOAD faults: r1 = memory at r0 = 0.
    let f = world.function("f", &[LOAD, 1, 0, NOP, NOP, RETURN]);
    let log = Log::new();
    let probe = world
        .probes
        .register(on(f).post(move |_| log.add("post")).fault(move |hit: &mut Hit<'_, Toy>, trap| {
            log.add(format!("{} {trap}", hit.regs().pc - f));
            match hit.regs().r[2] {
                0 => Answer::NotHandled,
                _ => {
                    hit.regs_mut().pc = f + 3;
                    Answer::Handled
                }
            }
        }))
        .unwrap();
    is_optimised(world, f);
    let (end, regs) = world.run(f, &[0, 0, 0]);
    assert!(matches!(end, End::Faulted(_)), "{end:?}");
    assert_eq!((regs.pc, log.take()), (f, vec!["0 14".to_owned()]));
    is_idle(world);
    assert_eq!((world.run(f, &[0, 0, 1]).0, log.take()), (End::Returned, vec!["0 14".to_owned()]));
    is_idle(world);
    assert_eq!((probe.counters().hits, probe.counters().faults), (2, 2));
    assert_eq!(
        (world.run(f, &[world.arena() + DATA, 0, 0]).0, log.take()),
        (End::Returned, vec!["post".to_owned()])
    );
}

#[test]
fn what_a_post_handler_needs_a_trap_for_keeps_its_breakpoint() {
    let world = World::new();
    let f = world.function("f", &[ADDRESS, 0, 0, NOP, NOP, RETURN]);
    let _probe = world.probes.register(on(f).post(|_| ())).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(0));
    let g = world.function("g", BODIES[1].1);
    let told = |f: usize| world.probes.explain(&Place::addr(f.into())).unwrap();
    assert!(told(g).jump_with_post.is_ok() && told(f).jump_with_post.is_err());
}

#[test]
fn post_handlers_that_come_and_go_keep_no_more_than_one_detour_more() {
    let world = World::new();
    let f = world.function("f", BODIES[1].1);
    let _kept = world.probes.register(on(f).pre(|_| ())).unwrap();
    let posts = counter();
    let cycle = || {
        is_optimised(world, f);
        assert_eq!(world.value(f, &[1]), 7);
        let _post = world.probes.register(on(f).post(move |_| bump(posts))).unwrap();
        is_optimised(world, f);
        assert_eq!(world.value(f, &[1]), 7);
    };
    cycle();
    let chunks = world.host().live_chunks.load(SeqCst);
    (1..2_000).for_each(|_| cycle());
    assert_eq!(posts.load(SeqCst), 2_000);
    assert_eq!(world.host().live_chunks.load(SeqCst), chunks);
}

#[test]
fn safe_3_jumps_with_post_handlers_come_and_go_while_others_run() {
    let rounds = threads::rounds(200);
    for (name, body) in BODIES {
        let world = World::new();
        let f = world.function(name, body);
        let posts: &'static AtomicU64 = Box::leak(Box::default());
        let count = move |_: &mut Hit<'_, Toy>| {
            posts.fetch_add(1, SeqCst);
        };
        let probe = world.probes.register(on(f).pre(|_| ()).post(count)).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..rounds).for_each(|_| assert_eq!(world.value(f, &[1]), 7)));
            }
            for _ in 0..rounds {
                assert_eq!(world.probes.jumps().lay(), Ok(1));
                // Both a hit's counting and its handlers are for whoever saw its beginning.
                drop(world.probes.register(on(f).pre(|_| ()).post(|_| ())).unwrap());
                world.probes.jumps().lift().unwrap();
            }
        });
        let hits = 3 * rounds as u64;
        assert_eq!(
            (probe.counters().hits, posts.load(SeqCst), probe.counters().missed_nested),
            (hits, hits, 0)
        );
        is_idle(world);
    }
}
