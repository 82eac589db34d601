//! Optimised probes: what a trap promises, a jump keeps.

use super::*;
use probe_core::files::Viewer;
use probe_core::handler::{Answer, Flow};
use probe_core::{AnyProbe, Jprobe, Switch};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// ADD (3 bytes), NOP, PUSH … : five bytes hold two instructions and a half. Returns its argument + 6.
pub(super) fn plus_six(world: &World, name: &str) -> usize {
    world.function(name, &[ADD, 0, 1, NOP, ADD, 0, 2, ADD, 0, 3, RETURN])
}

pub(super) fn list(world: &World) -> String {
    let mut list = String::new();
    world.probes.files().list(&mut list, Viewer::Privileged).unwrap();
    list
}

/// Whether a jump stands at `at`.
pub(super) fn has_jump(world: &World, at: usize) -> bool {
    (DETOUR_JUMP..=LAST_DETOUR_JUMP).contains(&world.bytes(at, 1)[0])
}

#[test]
fn hit_2_the_handler_of_a_jump_sees_and_changes_the_registers() {
    let world = World::new();
    let f = plus_six(world, "f");
    let probe = world
        .probes
        .register(K::at("f").pre(move |hit: &mut Hit<'_, Toy>| {
            assert_eq!((hit.pc().as_usize(), hit.regs().pc, hit.argument(0)), (f, f, Some(1)));
            hit.regs_mut().r[0] = 100;
        }))
        .unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    assert!(has_jump(world, f) && list(world).ends_with("[OPTIMIZED]\n"), "{}", list(world));
    // The first hit finds out whose context counts; the second takes the short way.
    assert_eq!([(); 2].map(|()| world.value(f, &[1])), [106; 2]);
    assert_eq!((probe.counters().hits, probe.counters().missed_nested), (2, 0));
}

#[test]
fn hit_2_a_redirection_holds_for_a_jump() {
    let world = World::new();
    let f = plus_six(world, "f");
    let other = world.function("other", &[SET, 0, 7, 0, RETURN]);
    let _probe = world.probes.register(K::at("f").pre(move |hit: &mut Hit<'_, Toy>| {
        hit.regs_mut().pc = other;
        Flow::Redirected
    }));
    world.probes.jumps().lay().unwrap();
    assert_eq!(world.value(f, &[1]), 7);
}

#[test]
fn hit_2_a_handler_of_a_jump_may_move_the_stack_pointer() {
    let world = World::new();
    let f = plus_six(world, "f");
    let _probe = world.probes.register(K::at("f").pre(|hit: &mut Hit<'_, Toy>| {
        let home = probe_core::arch::Memory::read_usize(&hit.memory(), hit.regs().sp).unwrap();
        probe_core::arch::Memory::write_usize(&hit.memory(), hit.regs().sp - 32, home).unwrap();
        hit.regs_mut().sp -= 32;
    }));
    world.probes.jumps().lay().unwrap();
    let (end, regs) = world.run(f, &[1]);
    let (_, bare) = world.run(plus_six(world, "g"), &[1]);
    assert_eq!((end, regs.r[0], regs.sp), (End::Returned, 7, bare.sp - 32));
}

#[test]
fn hit_1_a_context_among_the_displaced_instructions_goes_on_in_the_copy() {
    let world = World::new();
    let f = plus_six(world, "f");
    let _probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    for steps in 1..4 {
        // It stands behind some of the instructions when the jump is laid over them, and the other way round.
        let mut cpu = world.cpu(f, &[1]);
        (0..steps).for_each(|_| cpu.step().unwrap());
        assert_eq!(world.probes.jumps().lay(), Ok(1));
        assert_eq!(cpu.run(100), End::Returned);
        assert_eq!(cpu.regs.r[0], 7, "{steps} steps before the jump");
        let mut cpu = world.cpu(f, &[1]);
        (0..steps).for_each(|_| cpu.step().unwrap());
        world.probes.jumps().lift().unwrap();
        assert_eq!(cpu.run(100), End::Returned);
        assert_eq!(cpu.regs.r[0], 7, "{steps} steps in the jump");
    }
}

#[test]
fn reg_13_unregistering_takes_the_jump_out_of_text() {
    let world = World::new();
    let f = plus_six(world, "f");
    let before = world.text();
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    world.probes.jumps().lay().unwrap();
    assert!(world.text() != before);
    drop(probe);
    assert!(world.text() == before);
    assert_eq!(world.value(f, &[1]), 7);
}

#[test]
fn ctl_1_and_ctl_2_disabling_and_the_switch_take_jumps_away() {
    let world = World::new();
    let f = plus_six(world, "f");
    let before = world.text();
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    world.probes.jumps().lay().unwrap();
    probe.disable().unwrap();
    assert!(world.text() == before);
    probe.enable().unwrap();
    assert!(!has_jump(world, f));
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    world.probes.switch(Switch::Off).unwrap();
    assert!(world.text() == before);
    world.probes.switch(Switch::On).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    assert_eq!(world.value(f, &[1]), 7);
    assert_eq!(probe.counters().hits, 1);
}

#[test]
fn a_probe_on_a_displaced_instruction_takes_the_jump_away() {
    let world = World::new();
    let f = plus_six(world, "f");
    let first = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    let second = world.probes.register(K::at(at(f, 4)).pre(|_| ())).unwrap();
    assert!(!has_jump(world, f));
    assert_eq!(world.value(f, &[1]), 7);
    assert_eq!(world.probes.jumps().lay(), Ok(1), "the second one can have a jump, the first cannot");
    assert_eq!(world.value(f, &[1]), 7);
    assert_eq!((first.counters().hits, second.counters().hits), (2, 2));
    drop(second);
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    assert!(has_jump(world, f));
    // A disabled neighbour has no breakpoint; enabled, it has one.
    let third = world.probes.register(K::at(at(f, 3)).pre(|_| ()).disabled()).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    third.enable().unwrap();
    assert_eq!(world.value(f, &[1]), 7);
    assert_eq!((first.counters().hits, third.counters().hits), (3, 1));
}

#[test]
fn what_needs_a_trap_keeps_its_breakpoint() {
    extern "C" fn nothing() {}
    let world = World::new();
    let f = plus_six(world, "f");
    let simple = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    for kind in 0..2 {
        assert_eq!(world.probes.jumps().lay(), Ok(1), "kind {kind}");
        let other: probe_core::AnyProbe<Toy> = match kind {
            0 => K::at("f").pre(|_| ()).without_jump().into(),
            // SAFETY: never entered: the function is not called.
            _ => unsafe { Jprobe::from_raw("f", nothing as *const () as usize) }.into(),
        };
        let other = world.probes.register(other).unwrap();
        assert!(!has_jump(world, f), "kind {kind}");
        assert_eq!(world.probes.jumps().lay(), Ok(0));
        drop(other);
    }
    drop(simple);
    // Too short, a branch into it, no copy.
    for (name, code) in [
        ("short", &[NOP, RETURN][..]),
        ("target", &[NOP, NOP, NOP, NOP, NOP, RETURN, JUMP, 0, 0, 0, 0]),
        ("no_copy", &[NOP, ADDRESS, 0, 0, NOP, NOP, RETURN]),
    ] {
        let start = world.function(name, code);
        if name == "target" {
            world.put(start + 6, &world.jump(start + 2));
        }
        let _probe = world.probes.register(K::at(name).pre(|_| ())).unwrap();
        assert_eq!(world.probes.jumps().lay(), Ok(0), "{name}");
    }
}

#[test]
fn hit_6_a_jump_inside_a_handler_is_missed() {
    let world = World::new();
    let (f, g) = (plus_six(world, "f"), plus_six(world, "g"));
    let inner = world.probes.register(K::at("g").pre(|_| ())).unwrap();
    let outer = world.probes.register(K::at("f").pre(move |_| assert_eq!(world.value(g, &[5]), 11))).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(2));
    assert_eq!(world.value(f, &[1]), 7);
    assert_eq!((outer.counters().hits, inner.counters().hits, inner.counters().missed_nested), (1, 0, 1));
}

#[test]
fn ret_1_a_return_probe_can_be_entered_by_a_jump() {
    let world = World::new();
    let f = plus_six(world, "f");
    let probe = R::at("f").entry(|call| call.argument(0)).exit(|ret, argument| {
        ret.set_value(ret.value() + 100 * argument);
    });
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    assert_eq!(world.value(f, &[3]), 309);
    assert_eq!(probe.counters().hits, 1);
}

#[test]
fn reg_11_a_jump_calls_all_probes_of_its_place_however_many_are_left() {
    let world = World::new();
    let f = plus_six(world, "f");
    let adds =
        |constant: usize| K::at("f").pre(move |hit: &mut Hit<'_, Toy>| hit.regs_mut().r[0] += constant);
    let first = world.probes.register(adds(100)).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    assert_eq!(world.value(f, &[1]), 107);
    let second = world.probes.register(adds(1000)).unwrap();
    world.probes.jumps().lay().unwrap();
    // The second time, too: there is a short way for one probe alone.
    assert_eq!([(); 2].map(|()| world.value(f, &[1])), [1_107; 2]);
    let ret = world.probes.register(R::at("f").exit(|ret, ()| ret.set_value(ret.value() + 10_000))).unwrap();
    world.probes.jumps().lay().unwrap();
    assert!(has_jump(world, f));
    assert_eq!(world.value(f, &[1]), 11_107);
    drop(second);
    assert!(has_jump(world, f));
    assert_eq!(world.value(f, &[1]), 10_107);
    drop(first);
    assert!(has_jump(world, f));
    assert_eq!([(); 2].map(|()| world.value(f, &[1])), [10_007; 2]);
    assert_eq!(ret.counters().hits, 4);
    let third = world.probes.register(adds(100)).unwrap();
    assert!(has_jump(world, f));
    assert_eq!(world.value(f, &[1]), 10_107);
    drop(ret);
    assert!(has_jump(world, f));
    assert_eq!([(); 2].map(|()| world.value(f, &[1])), [107; 2]);
    assert_eq!(third.counters().hits, 3);
}

#[test]
fn reg_18_a_handler_disables_its_probe_with_a_jump_at_once() {
    let world = World::new();
    let f = plus_six(world, "f");
    let calls = |arguments: &[usize]| {
        arguments.iter().for_each(|argument| {
            let _ = world.value(f, &[*argument]);
        })
    };
    let disables = |hit: &mut Hit<'_, Toy>| {
        if hit.regs().r[0] == 9 {
            hit.disable();
        }
    };
    let probe = world.probes.register(K::at("f").pre(disables)).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    calls(&[1, 1, 9, 1, 1]);
    assert!(has_jump(world, f));
    assert_eq!(probe.counters().hits, 3);
    probe.enable().unwrap();
    world.probes.jumps().lay().unwrap();
    calls(&[1, 1, 1]);
    assert_eq!(probe.counters().hits, 6);
    drop(probe);

    let probe = world.probes.register(R::at("f").exit(|ret, ()| {
        if ret.value() == 15 {
            ret.disable();
        }
    }));
    let probe = probe.unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    calls(&[1, 1, 9, 1, 1]);
    assert!(has_jump(world, f));
    assert_eq!((probe.counters().hits, probe.counters().pool_high_water), (3, 1));
    probe.enable().unwrap();
    world.probes.jumps().lay().unwrap();
    calls(&[1, 1, 1]);
    assert_eq!(probe.counters().hits, 6);
}

/// Each context counts for itself, as far as there is room; the probes of the second round begin at 0.
#[test]
fn hit_7_hits_by_jump_stay_exact_with_many_contexts() {
    const CONTEXTS: usize = 4;
    let world = World::new();
    let functions: Vec<usize> = (0..20).map(|number| plus_six(world, &format!("f{number}"))).collect();
    let rounds = super::threads::rounds(100);
    // The same contexts hit the first probes and the next ones: what they count with is used again.
    let turn = Barrier::new(CONTEXTS + 1);
    let (wrong, mut counted) = (AtomicUsize::new(0), Vec::new());
    thread::scope(|scope| {
        for _ in 0..CONTEXTS {
            scope.spawn(|| {
                for _ in 0..2 {
                    turn.wait();
                    for f in std::iter::repeat_n(&functions, rounds).flatten() {
                        wrong.fetch_add(usize::from(world.value(*f, &[1]) != 7), Relaxed);
                    }
                    turn.wait();
                }
            });
        }
        for _ in 0..2 {
            let probes = functions.iter().map(|f| K::at(at(*f, 0)).pre(|_| ()).into());
            let probes = world.probes.register_all(probes.collect::<Vec<AnyProbe<Toy>>>()).unwrap();
            assert_eq!(world.probes.jumps().lay(), Ok(functions.len()));
            turn.wait();
            turn.wait();
            counted.extend(probes.iter().map(|probe| probe.counters().hits));
        }
    });
    // Not before: who waits for a thread that has panicked waits for ever.
    assert_eq!(wrong.into_inner(), 0);
    assert_eq!(counted, [(CONTEXTS * rounds) as u64].repeat(2 * functions.len()));
}

#[test]
fn hit_9_a_fault_in_a_copy_looks_as_if_it_had_happened_in_place() {
    let world = World::new();
    // LOAD faults: r1 = memory at r0 = 0.
    for (offset, code) in [(0, &[LOAD, 1, 0, NOP, NOP, RETURN][..]), (2, &[NOP, NOP, LOAD, 1, 0, RETURN])] {
        let name = format!("f{offset}");
        let f = world.function(&name, code);
        let log = Log::new();
        let probe = K::at(name.as_str()).pre(|_| ()).fault(move |hit: &mut Hit<'_, Toy>, trap| {
            log.add(format!("{} {trap}", hit.regs().pc - f));
            Answer::NotHandled
        });
        let _probe = world.probes.register(probe).unwrap();
        assert_eq!(world.probes.jumps().lay(), Ok(1));
        let (end, regs) = world.run(f, &[0]);
        assert!(matches!(end, End::Faulted(_)), "{end:?}");
        assert_eq!(regs.pc, f + offset);
        // The fault of another instruction is not the probe's.
        assert_eq!(log.take(), if offset == 0 { vec!["0 14"] } else { vec![] });
    }
}

#[test]
fn ctl_5_text_that_goes_takes_its_jumps_with_it() {
    let world = World::new();
    let f = world.function_in("f", Some("module"), &[NOP, NOP, NOP, NOP, NOP, RETURN]);
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    let before = world.text();
    world.probes.events().text_going(f.into(), (f + 6).into());
    assert!(world.text() == before, "nothing is written to text that goes");
    assert!(list(world).ends_with("[GONE]\n"));
    drop(probe);
    assert!(world.text() == before);
}

#[test]
fn reg_8_a_failed_write_leaves_a_working_program_and_a_working_probe() {
    for number in 1.. {
        let world = World::new();
        let (f, g) = (plus_six(world, "f"), plus_six(world, "g"));
        let probes = ["f", "g"].map(|name| world.probes.register(K::at(name).pre(|_| ())).unwrap());
        world.host().failing_write.store(number, SeqCst);
        let done = world.probes.jumps().lay();
        let was_reached = world.host().failing_write.swap(0, SeqCst) == 0;
        assert_eq!([world.value(f, &[1]), world.value(g, &[1])], [7, 7], "write {number}: {done:?}");
        assert!(probes.iter().all(|probe| probe.counters().hits == 1), "write {number}");
        if !was_reached {
            assert_eq!(done, Ok(2));
            break;
        }
    }
}

#[test]
fn optimising_again_and_again_keeps_nothing_more() {
    let world = World::new();
    let f = plus_six(world, "f");
    let cycle = || {
        let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
        assert_eq!(world.probes.jumps().lay(), Ok(1));
        assert_eq!(world.value(f, &[1]), 7);
        assert_eq!(probe.counters().hits, 1);
    };
    cycle();
    let chunks = world.host().live_chunks.load(SeqCst);
    (0..100).for_each(|_| cycle());
    assert_eq!(world.host().live_chunks.load(SeqCst), chunks);
}

#[test]
fn probes_are_optimised_by_themselves_where_that_is_wished() {
    let world = World::new();
    let f = plus_six(world, "f");
    world.probes.jumps().set_automatic(Switch::On);
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert!(has_jump(world, f));
    assert_eq!(world.value(f, &[1]), 7);
    assert_eq!(probe.counters().hits, 1);
}

#[test]
fn reg_20_the_host_is_asked_what_a_jump_displaces_before_the_registry_is_locked() {
    let world = World::new();
    let f = plus_six(world, "f");
    let g = plus_six(world, "g");
    // Every answer asserts it; these are the three ways to a first detour.
    let questions = || world.host().questions.swap(0, SeqCst);
    let later = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert_ne!(questions(), 0);
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    assert_ne!(questions(), 0, "of the function, and of what the jump displaces");
    world.probes.jumps().set_automatic(Switch::On);
    let at_once = world.probes.register(K::at("g").pre(|_| ())).unwrap();
    assert!(has_jump(world, f) && has_jump(world, g));
    assert_ne!(questions(), 0);
    assert_eq!(world.probes.explain(&"g".into()).unwrap().jump, Ok(()));
    drop((later, at_once));
    // What the host refuses is heeded still.
    let h = plus_six(world, "h");
    world.host().blacklist.lock().unwrap().push((h + 3, h + 4, "under the jump".into()));
    let kept = world.probes.register(K::at("h").pre(|_| ())).unwrap();
    assert!(!has_jump(world, h));
    assert!(world.probes.explain(&"h".into()).unwrap().jump.is_err());
    drop(kept);
}

#[test]
fn safe_3_jumps_come_and_go_while_others_run() {
    let rounds = threads::rounds(200);
    let world = World::new();
    let f = plus_six(world, "f");
    let g = plus_six(world, "g");
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    let ret = world.probes.register(R::at("g").max_active(8).entry(|_| Some(())).exit(|_, ()| ())).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    assert_eq!([world.value(f, &[1]), world.value(g, &[2])], [7, 8]);
                }
            });
        }
        for round in 0..rounds {
            assert_eq!(world.probes.jumps().lay(), Ok(2));
            if round % 3 == 0 {
                // Over a displaced instruction.
                drop(world.probes.register(K::at(at(f, 3)).pre(|_| ())).unwrap());
            }
            world.probes.jumps().lift().unwrap();
        }
    });
    assert_eq!((probe.counters().hits, probe.counters().missed_nested), (3 * rounds as u64, 0));
    assert_eq!((ret.counters().hits, ret.counters().missed_pool), (3 * rounds as u64, 0));
}

/// Where there is no room for detours, the host is asked once in a batch, not once for each point; the next
/// batch asks again.
#[test]
fn reg_12_room_that_is_refused_is_asked_for_once_in_a_batch() {
    const POINTS: usize = 50;
    let world = World::new();
    let functions: Vec<_> = (0..POINTS).map(|number| plus_six(world, &format!("f{number}"))).collect();
    let asked = || world.host().chunks_asked.swap(0, SeqCst);
    world.probes.jumps().set_automatic(Switch::On);
    // The one is for slots.
    world.host().chunks_left.store(1, SeqCst);
    let probes = functions.iter().map(|f| K::at(at(*f, 0)).pre(|_| ()));
    let probes = world.probes.register_all(probes).unwrap();
    assert!(!functions.iter().any(|f| has_jump(world, *f)));
    let by_batch = asked();
    assert!(by_batch < 200, "{by_batch}");
    assert_eq!(world.probes.jumps().lay(), Ok(0));
    let again = asked();
    assert!((1..200).contains(&again), "{again}");
    world.host().chunks_left.store(100, SeqCst);
    assert_eq!(world.probes.jumps().lay(), Ok(POINTS));
    drop(probes);
}
