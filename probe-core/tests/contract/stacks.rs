//! What a host says about tasks and stacks, and what becomes of calls when it is late or wrong: RET_11,
//! RET_13, and pools that grow (RET_2, RET_3).

use super::kretprobe::recursive;
use super::*;
use probe_core::Probe;
use probe_core::handler::Call;
use probe_core::host::{Context, Task};
use probe_core::limits::MAX_ACTIVE;
use rstest::rstest;

/// A task whose stack is that of `cpu`.
fn task_of(cpu: &Cpu) -> &'static Task<Toy> {
    let sp = cpu.regs.sp;
    Box::leak(Box::new(Task::on_stack(sp - 1024..sp + 64)))
}

/// From here on the host says that this task runs, on this thread's context.
fn say(world: &'static World, context: &'static Context<Toy>, task: &'static Task<Toy>) {
    world.host().swap_task(Some((context, task)));
}

/// A world in which a return that is lost fails the test.
fn world() -> (&'static World, &'static Context<Toy>) {
    let world = World::new();
    world.host().panics_at_stop.store(true, SeqCst);
    (world, world.host().current().0)
}

/// Two calls' processors, each with a stack of its own; which one lies higher is told by `swapped`.
fn two(world: &'static World, f: usize, swapped: bool) -> (Cpu, Cpu) {
    let (a, b) = (world.cpu(f, &[1]), world.cpu(f, &[2]));
    if swapped { (b, a) } else { (a, b) }
}

fn counting_exits(world: &'static World, calls: i32) -> (Probe<ToyHost>, &'static AtomicUsize) {
    let exits = counter();
    let probe = R::at("f").max_active(calls).entry(|_| Some(())).exit(move |_, ()| bump(exits));
    (world.probes.register(probe).unwrap(), exits)
}

/// `current` changes before the stack does: a call of one task is entered while the host says that another
/// one runs, which ends.
#[rstest]
fn ret_11_a_task_that_is_told_too_early_loses_no_return(
    #[values(false, true)] swapped: bool,
    #[values(false, true)] told_late: bool,
) {
    let (world, context) = world();
    let f = plus_five(world, "f");
    let (probe, exits) = counting_exits(world, 8);
    let (mut a, mut b) = two(world, f, swapped);
    let (task_a, task_b) = (task_of(&a), task_of(&b));
    let first = a.regs.r[0];
    say(world, context, if told_late { task_a } else { task_b });
    a.run(2);
    assert_eq!(probe.counters().hits, 1);
    // The other one runs, ends, and its stack serves another task.
    say(world, context, if told_late { task_a } else { task_b });
    b.run(2);
    say(world, context, task_b);
    assert_eq!(b.run(100), End::Returned);
    world.probes.events().task_exit(task_b);
    world.probes.events().task_exit(task_b);
    say(world, context, task_b);
    for argument in 0..8 {
        assert_eq!(world.value(f, &[argument]), argument + 5);
    }
    say(world, context, task_a);
    assert_eq!(a.run(100), End::Returned);
    assert_eq!(a.regs.r[0], first + 5);
    assert_eq!((probe.counters().hits, exits.load(SeqCst), probe.counters().abandoned), (10, 10, 0));
    assert!(task_a.is_idle() && task_b.is_idle());
}

/// An interrupt arrives when a call has just returned to its stub, overwrites the popped word, and calls what
/// is followed: on a stack of its own while the host goes on to say that the interrupted task runs, and on
/// the task's.
#[rstest]
fn ret_11_an_interrupt_at_the_moment_of_a_return_loses_no_return(
    #[values(false, true)] swapped: bool,
    #[values(false, true)] on_own_stack: bool,
    #[values(false, true)] is_thread: bool,
    #[values(1, 2, 40)] calls: i32,
) {
    let (world, context) = world();
    let f = plus_five(world, "f");
    let (probe, exits) = counting_exits(world, calls);
    let (mut a, mut interrupt) = two(world, f, swapped);
    let task = if is_thread { Box::leak(Box::new(Task::new())) } else { task_of(&a) };
    if is_thread {
        // SAFETY: this test is its one thread.
        unsafe { task.own_every_stack() };
    }
    say(world, context, task);
    let first = a.regs.r[0];
    let frame = a.regs.sp;
    while a.regs.sp == frame {
        a.run(1);
    }
    world.put(frame, &[0; 8]);
    world.put(frame - 32, &a.regs.pc.to_ne_bytes());
    if on_own_stack {
        interrupt.regs.sp = frame - 64;
        world.put(interrupt.regs.sp, &world.arena().to_ne_bytes());
    }
    let second = interrupt.regs.r[0];
    interrupt.run(2);
    // Another one, as deep as the interrupted call was, on a third stack.
    world.value(f, &[7]);
    assert_eq!(interrupt.run(100), End::Returned);
    assert_eq!(interrupt.regs.r[0], second + 5);
    assert_eq!(a.run(100), End::Returned);
    assert_eq!(a.regs.r[0], first + 5);
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.abandoned), (exits.load(SeqCst) as u64, 0));
    assert_eq!(counters.hits + counters.missed_pool, 3);
    assert!(task.is_idle());
}

/// A followed call on an interrupt's stack is pending while the interrupted task's are: neither is taken for
/// the other's leavings.
#[rstest]
fn ret_11_calls_on_an_interrupts_stack_abandon_none_of_the_task(#[values(false, true)] swapped: bool) {
    let (world, context) = world();
    let f = plus_five(world, "f");
    let (probe, exits) = counting_exits(world, 8);
    let (mut a, mut interrupt) = two(world, f, swapped);
    let task = task_of(&a);
    say(world, context, task);
    a.run(2);
    // As where the return address is in a register: the stack does not show it.
    let stub = world.bytes(a.regs.sp, size_of::<usize>());
    world.put(a.regs.sp, &[0; 8]);
    interrupt.run(2);
    world.value(f, &[7]);
    assert_eq!(interrupt.run(100), End::Returned);
    world.put(a.regs.sp, &stub);
    assert_eq!(a.run(100), End::Returned);
    assert_eq!((exits.load(SeqCst), probe.counters().abandoned, task.is_idle()), (3, 0, true));
}

/// Nothing is known about stacks: calls return as ever, and one that never does keeps its instance, until the
/// probe goes.
#[test]
fn ret_11_where_no_stack_is_known_calls_are_followed_all_the_same() {
    let (world, context) = world();
    let f = recursive(world);
    let exits = counter();
    let probe = R::at("recursive").max_active(6).entry(|_| Some(())).exit(move |_, ()| bump(exits));
    let probe = world.probes.register(probe).unwrap();
    let task: &Task<Toy> = Box::leak(Box::new(Task::new()));
    say(world, context, task);
    assert_eq!(world.run(f, &[5, 0]).1.r[1], 5);
    assert_eq!((probe.counters().hits, exits.load(SeqCst), task.is_idle()), (6, 6, true));
    let mut cpu = world.cpu(f, &[9, 0]);
    while probe.counters().hits < 8 {
        cpu.run(1);
    }
    world.probes.events().task_exit(task);
    assert_eq!(cpu.run(10_000), End::Returned, "a task's end that is told too early");
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool, counters.abandoned), (12, 4, 0));
    assert_eq!(exits.load(SeqCst), 12);
}

/// Longjmp on a stack that is known: what lies below the stack pointer is gone, whatever memory says.
#[test]
fn ret_11_a_call_below_the_stack_pointer_is_dropped_though_its_frame_is_intact() {
    let (world, context) = world();
    let f = recursive(world);
    let g = plus_five(world, "f");
    let (other, exits) = counting_exits(world, 8);
    let probe = world.probes.register(R::at("recursive").max_active(6).entry(|_| Some(()))).unwrap();
    let mut cpu = world.cpu(f, &[9, 0]);
    say(world, context, task_of(&cpu));
    let start = cpu.regs;
    while probe.counters().hits < 5 {
        cpu.run(1);
    }
    cpu.regs = ToyRegs { pc: g, ..start };
    world.put(cpu.regs.sp, &world.arena().to_ne_bytes());
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!((probe.counters().abandoned, other.counters().abandoned, exits.load(SeqCst)), (5, 0, 1));
    // They serve again, and the pool has not been larger for it.
    assert_eq!(world.run(f, &[4, 0]).1.r[1], 4);
    assert_eq!((probe.counters().missed_pool, probe.counters().pool_high_water), (0, 5));
}

/// A call that has been given up returns all the same, once another call has been followed by its instance:
/// never to that one's caller.
#[test]
fn ret_11_an_instance_that_was_given_up_is_taken_last() {
    let (world, _) = world();
    let f = plus_five(world, "f");
    let (probe, exits) = counting_exits(world, 3);
    let mut others = [2, 3].map(|argument| world.cpu(f, &[argument]));
    let mut first = world.cpu(f, &[1]);
    let frame = first.regs.sp;
    while first.regs.sp == frame {
        first.run(1);
    }
    world.put(frame, &[0; 8]);
    for cpu in &mut others {
        cpu.run(2);
    }
    assert_eq!((probe.counters().hits, probe.counters().abandoned), (3, 1));
    assert_eq!(first.run(100), End::Returned);
    assert_eq!(first.regs.r[0], 6);
    for (cpu, value) in others.iter_mut().zip([7, 8]) {
        assert_eq!(cpu.run(100), End::Returned);
        assert_eq!(cpu.regs.r[0], value);
    }
    assert_eq!((probe.counters().missed_pool, exits.load(SeqCst)), (0, 2));
}

/// The probe goes, and so would its pool: but the one call that is left may return yet.
#[test]
fn ret_11_the_stub_of_a_call_that_was_given_up_outlives_its_probe() {
    let (world, _) = world();
    let f = plus_five(world, "f");
    let (probe, exits) = counting_exits(world, 3);
    let mut other = world.cpu(f, &[2]);
    let mut left = world.cpu(f, &[1]);
    let frame = left.regs.sp;
    while left.regs.sp == frame {
        left.run(1);
    }
    world.put(frame, &[0; 8]);
    assert_eq!((other.run(100), other.regs.r[0]), (End::Returned, 7));
    assert_eq!((probe.counters().hits, probe.counters().abandoned), (2, 1));
    probe.unregister().unwrap();
    world.probes.settle();
    world.probes.settle();
    assert_eq!(left.run(100), End::Returned);
    assert_eq!((left.regs.r[0], exits.load(SeqCst)), (6, 1));
    world.probes.settle();
    world.probes.settle();
    assert_eq!(world.host().live_chunks.load(SeqCst), 1, "the slot");
}

/// Threads end within coroutines' calls, and the probes go: a pool goes with its probe, and a stub when its
/// call has returned.
#[test]
fn ret_6_a_pool_goes_with_its_probe_though_a_call_of_it_was_given_up() {
    const ROUNDS: usize = 8;
    let (world, _) = world();
    let f = plus_five(world, "f");
    let thread = world.host().current().1;
    let mut coroutines: Vec<Cpu> = (0..ROUNDS).map(|round| world.cpu(f, &[round])).collect();
    let mut held = Vec::with_capacity(ROUNDS);
    for coroutine in &mut coroutines {
        let probe = world.probes.register(R::at("f").max_active(100).exit(|_, ()| ())).unwrap();
        coroutine.run(2);
        coroutine.trace = Vec::new();
        world.probes.events().task_exit(thread);
        assert_eq!(probe.counters().abandoned, 1);
        probe.unregister().unwrap();
        world.probes.settle();
        held.push(alloc_count::live());
    }
    assert_eq!(held[1..], [held[1]; ROUNDS - 1], "the chunk of stubs stays from the first round on");
    assert_eq!(world.host().live_chunks.load(SeqCst), 2, "the slots' and the stubs'");
    for (round, coroutine) in coroutines.iter_mut().enumerate() {
        // It is entered by another call before it goes on: a probe's stub may stand for a stub that was left.
        let probe = (round == 3).then(|| world.probes.register(R::at("f").exit(|_, ()| ())).unwrap());
        assert_eq!((coroutine.run(100), coroutine.regs.r[0]), (End::Returned, round + 5));
        drop(probe);
    }
    world.probes.settle();
    assert_eq!(world.host().live_chunks.load(SeqCst), 1, "the slots'");
}

/// A stub that was left is where a call returns to that a probe follows.
#[test]
fn ret_8_a_call_from_one_that_was_given_up_returns_through_both_stubs() {
    let (world, _) = world();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let (probe, _) = counting_exits(world, 3);
    let thread = world.host().current().1;
    let mut coroutine = world.cpu(f, &[1]);
    coroutine.run(2);
    world.probes.events().task_exit(thread);
    probe.unregister().unwrap();
    world.probes.settle();
    let exits = counter();
    let later = R::at("g").exit(move |regs, ()| {
        bump(exits);
        assert!(world.probes.real_return_address(regs.pc()).is_none(), "home, not a stub");
    });
    let later = world.probes.register(later).unwrap();
    // As a tail call of g: the return address is the stub.
    coroutine.regs.pc = g;
    assert_eq!((coroutine.run(100), exits.load(SeqCst)), (End::Returned, 1));
    later.unregister().unwrap();
    world.probes.settle();
    assert_eq!(world.host().live_chunks.load(SeqCst), 1, "the slots'");
}

/// A thread ends within a coroutine's call; another thread goes on with the coroutine.
#[rstest]
fn ret_13_a_coroutine_returns_though_the_thread_that_has_begun_its_call_has_ended(
    #[values(false, true)] is_told_before: bool,
) {
    let (world, context) = world();
    let f = plus_five(world, "f");
    let (probe, exits) = counting_exits(world, 8);
    let ended = world.host().current().1;
    let mut coroutine = world.cpu(f, &[1]);
    coroutine.run(2);
    if is_told_before {
        world.probes.events().task_exiting(ended, usize::MAX);
    }
    world.probes.events().task_exit(ended);
    assert_eq!((probe.counters().abandoned, ended.is_idle()), (1, true));
    let other: &Task<Toy> = Box::leak(Box::new(Task::new()));
    // SAFETY: it alone is the running task from here on.
    unsafe { other.own_every_stack() };
    say(world, context, other);
    assert_eq!(world.value(f, &[7]), 12);
    assert_eq!(coroutine.run(100), End::Returned);
    assert_eq!((coroutine.regs.r[0], exits.load(SeqCst)), (6, 1));
}

#[rstest]
fn ret_13_calls_that_a_tasks_end_cuts_off_count_as_abandoned(#[values(false, true)] on_one_stack: bool) {
    let (world, context) = world();
    let f = recursive(world);
    let probe = world.probes.register(R::at("recursive").max_active(8).entry(|_| Some(()))).unwrap();
    let mut cpu = world.cpu(f, &[50, 0]);
    let task = match on_one_stack {
        true => task_of(&cpu),
        false => world.host().current().1,
    };
    say(world, context, task);
    while probe.counters().hits < 7 {
        cpu.run(1);
    }
    world.probes.events().task_exit(task);
    world.probes.events().task_exit(task);
    assert_eq!((probe.counters().abandoned, task.is_idle()), (7, true));
}

/// As many processors as that, each within a followed call.
fn inside(world: &'static World, f: usize, calls: usize) -> Vec<Cpu> {
    let mut cpus: Vec<_> = (0..calls).map(|argument| world.cpu(f, &[argument])).collect();
    for cpu in &mut cpus {
        cpu.run(2);
    }
    cpus
}

#[test]
fn ret_2_a_pool_grows_before_it_is_empty() {
    let world = World::new();
    let f = plus_five(world, "f");
    let exits = counter();
    let probe = R::at("f").max_active(4).grow_to(100).entry(|call: &mut Call<'_, Toy>| call.argument(0));
    let probe = probe.exit(move |ret, argument: usize| {
        assert_eq!(ret.value(), argument + 5);
        bump(exits);
    });
    let probe = world.probes.register(probe).unwrap();
    assert!(!world.probes.pools().are_low());
    let mut cpus = Vec::new();
    for argument in 0..100 {
        let mut cpu = world.cpu(f, &[argument]);
        cpu.run(2);
        cpus.push(cpu);
        if world.probes.pools().are_low() {
            let added = world.probes.pools().grow(0).unwrap();
            assert!(added != 0 || cpus.len() > 50, "{}", cpus.len());
        }
    }
    assert_eq!((probe.counters().hits, probe.counters().missed_pool), (100, 0));
    assert_eq!(probe.counters().pool_high_water, 100);
    assert_eq!(world.probes.pools().grow(100_000).unwrap(), 0, "its own most is kept");
    let mut last = world.cpu(f, &[1]);
    last.run(2);
    assert_eq!(probe.counters().missed_pool, 1, "what cannot be had is missed");
    assert_eq!(last.run(100), End::Returned);
    for cpu in &mut cpus {
        assert_eq!(cpu.run(100), End::Returned);
    }
    assert_eq!(exits.load(SeqCst), 100);
    drop((cpus, last));
    // All of them serve again, and go with the probe while some are in flight.
    let mut cpus = inside(world, f, 100);
    assert_eq!(probe.counters().missed_pool, 1);
    probe.unregister().unwrap();
    cpus.iter_mut().for_each(|cpu| assert_eq!(cpu.run(100), End::Returned));
    world.probes.settle();
    world.probes.settle();
    assert_eq!(world.host().live_chunks.load(SeqCst), 1, "the slot");
}

#[test]
fn ret_2_a_pool_that_has_not_asked_grows_to_the_calls_that_are_to_come() {
    let world = World::new();
    let f = plus_five(world, "f");
    let growing = world.probes.register(R::at("f").max_active(4).grow_to(80)).unwrap();
    let fixed = world.probes.register(R::at("f").max_active(4)).unwrap();
    assert_eq!(world.probes.pools().grow(60).unwrap(), 56);
    assert_eq!(world.probes.pools().grow(60).unwrap(), 0);
    let mut cpus = inside(world, f, 61);
    assert_eq!((growing.counters().missed_pool, fixed.counters().missed_pool), (1, 57));
    cpus.iter_mut().for_each(|cpu| assert_eq!(cpu.run(200), End::Returned));
}

/// Instances of calls that a longjmp has left serve again: a pool does not grow with how many were left, but
/// with how many are in flight.
#[test]
fn ret_2_calls_that_are_left_make_no_pool_grow() {
    let (world, _) = world();
    let f = plus_five(world, "f");
    let probe = world.probes.register(R::at("f").max_active(4).grow_to(MAX_ACTIVE)).unwrap();
    let grow = || if world.probes.pools().are_low() { world.probes.pools().grow(0).unwrap() } else { 0 };
    let mut cpu = world.cpu(f, &[1]);
    let start = cpu.regs;
    let caller = world.bytes(start.sp, size_of::<usize>());
    let mut added = 0;
    for _ in 0..200 {
        cpu.run(2);
        cpu.regs = start;
        world.put(start.sp, &caller);
        added += grow();
    }
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool, added), (200, 0, 0));
    assert!(counters.abandoned >= 195, "{}", counters.abandoned);
    let mut cpus = Vec::new();
    for argument in 0..50 {
        let mut cpu = world.cpu(f, &[argument]);
        cpu.run(2);
        cpus.push(cpu);
        added += grow();
    }
    assert_eq!((probe.counters().hits, probe.counters().missed_pool), (250, 0));
    assert!((46..=124).contains(&added), "{added}");
    for (argument, cpu) in cpus.iter_mut().enumerate() {
        assert_eq!(cpu.run(100), End::Returned);
        assert_eq!(cpu.regs.r[0], argument + 5);
    }
}

#[test]
fn ret_2_growing_without_memory_leaves_the_pool_as_it_was() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(R::at("f").max_active(4).grow_to(MAX_ACTIVE)).unwrap();
    world.host().chunks_left.store(0, SeqCst);
    assert!(world.probes.pools().grow(100_000).is_err());
    let cpus = inside(world, f, 5);
    assert_eq!((probe.counters().hits, probe.counters().missed_pool), (4, 1));
    drop(cpus);
}
