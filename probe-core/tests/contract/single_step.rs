//! Slots that the processor steps (HIT_1): the trap after the instruction ends the step, the breakpoint
//! behind it what that trap cannot.

use super::*;
use probe_core::CodeAddr;
use probe_core::handler::Answer;
use probe_core::limits::MAX_DEPTH;
use probe_core::traps::{Copied, Trap};
use rstest::rstest;

/// A world whose host steps in hardware.
fn stepping() -> &'static World {
    let world = World::new();
    world.host().has_single_step.store(true, SeqCst);
    world
}

/// Whether the run has met a breakpoint in a slot.
fn breakpoints_met(world: &'static World, cpu: &Cpu) -> usize {
    let slots = cpu.trace.iter().filter(|at| !(world.arena()..world.arena() + ARENA).contains(at));
    slots.filter(|at| world.bytes(**at, 1) == [BREAK]).count()
}

#[rstest]
#[case::boosted_otherwise(0, 3, 0)]
#[case::of_two_instructions(3, 5, 1)]
#[case::corrected(5, 8, 0)]
fn hit_1_a_stepped_slot_ends_behind_its_instruction(
    #[case] offset: isize,
    #[case] next: usize,
    #[case] breakpoints: usize,
) {
    let world = stepping();
    let f = plus_five(world, "f");
    let bare = world.run(f, &[1]);
    let log = Log::new();
    let probe = K::at(at(f, offset)).pre(|_| log.add("pre")).post(move |hit: &mut Hit<'_, Toy>| {
        assert!(!hit.regs().is_masked && !hit.regs().is_stepped, "as in place");
        log.add(format!("{}", hit.regs().pc - f));
    });
    let probe = world.probes.register(probe).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    let end = cpu.run(100);
    assert_eq!((end, cpu.regs.r, cpu.regs.is_stepped), (bare.0, bare.1.r, false));
    assert_eq!((log.take(), probe.counters().hits), (vec!["pre".into(), next.to_string()], 1));
    assert_eq!(breakpoints_met(world, &cpu), breakpoints);
}

#[test]
fn hit_9_a_fault_of_a_stepped_instruction_is_that_of_the_place() {
    let world = stepping();
    let f = world.function("f", &[LOAD, 0, 1, RETURN]);
    let bare = world.run(f, &[1]);
    assert!(matches!(bare.0, End::Faulted(_)));
    let probe = K::at("f").post(|_| ()).fault(|hit: &mut Hit<'_, Toy>, _| {
        assert!(!hit.regs().is_stepped && !hit.regs().is_masked);
        Answer::NotHandled
    });
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(world.run(f, &[1]), bare);
    assert_eq!(probe.counters().faults, 1);
}

/// HIT_5: somebody else steps the program.
#[test]
fn hit_5_a_step_of_the_program_is_not_ours() {
    let world = stepping();
    let f = plus_five(world, "f");
    let _probe = world.probes.register(K::at(at(f, 3)).post(|_| ())).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    cpu.regs.is_stepped = true;
    let before = ToyRegs { pc: f + 3, ..cpu.regs };
    assert_eq!(cpu.run(1), End::Trapped(f + 3));
    assert_eq!((cpu.regs.pc, cpu.regs.is_stepped), (before.pc, true));
    // A probe on the way leaves the program stepped as it was.
    while cpu.regs.pc != f + 5 {
        let end = cpu.run(1);
        assert!(matches!(end, End::Timeout | End::Trapped(_)), "{end:?}");
    }
    assert!(cpu.regs.is_stepped);
    assert_eq!(world.probes.traps().step(&mut cpu.regs), Trap::NotOurs);
}

/// HIT_1: what a host asks whose program steps itself: where the processor traps by itself, and where the
/// host has to.
#[test]
fn hit_1_a_copy_is_told_from_text() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at(at(f, 3)).pre(|_| ()).post(|_| ())).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    assert_eq!(cpu.run(100), End::Returned);
    let in_slot: Vec<bool> = cpu
        .trace
        .iter()
        .map(|&at| world.probes.traps().copied_at(CodeAddr::new(at)) == Some(Copied::Slot))
        .collect();
    let outside: Vec<bool> =
        cpu.trace.iter().map(|at| !(world.arena()..world.arena() + ARENA).contains(at)).collect();
    assert!(outside.contains(&true));
    assert_eq!(in_slot, outside);
    drop(probe);
}

/// HIT_6: beyond the frames of a context, and in one that the host has no room for, the slot's breakpoint
/// ends the step.
#[test]
fn hit_6_without_a_frame_a_stepped_slot_ends_in_its_breakpoint() {
    let world = stepping();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at(at(f, 3)).pre(|_| ()).post(|_| ())).unwrap();
    world.host().has_contexts.store(false, SeqCst);
    assert_eq!(world.value(f, &[1]), 6);
    world.host().has_contexts.store(true, SeqCst);
    assert_eq!((probe.counters().hits, probe.counters().missed_nested), (0, 1));
    // Each in the slot of the one before.
    fn nest(world: &'static World, f: usize, depth: usize) {
        let mut cpu = world.cpu(f, &[1]);
        while !cpu.regs.is_stepped {
            assert_eq!(cpu.run(1), End::Timeout);
        }
        if depth > 0 {
            nest(world, f, depth - 1);
        }
        assert_eq!((cpu.run(100), cpu.regs.r[0], cpu.regs.is_stepped), (End::Returned, 6, false));
    }
    nest(world, f, MAX_DEPTH + 2);
    assert_eq!(probe.counters().hits + probe.counters().missed_nested, MAX_DEPTH as u64 + 4);
}
