//! RET_1 to RET_10.

use super::*;
use probe_core::handler::{Call, Follow, Return};
use probe_core::host::{Context, Notice, Task};
use probe_core::{CodeAddr, Probe};
use rstest::rstest;
use std::sync::Arc;

/// `caller` calls `f` and adds 1 to what it returns.
fn caller(world: &World, f: usize) -> usize {
    world.function("caller", &[&world.call(f)[..], &[ADD, 0, 1, RETURN]].concat())
}

/// A function that calls itself r0 times, one deeper each time, and returns r1 + the depth.
pub(crate) fn recursive(world: &World) -> usize {
    let start = world.function("recursive", &[NOP; 32]);
    let end = world.function("end", &[RETURN]);
    let code =
        [&[BRANCH, 0, 5][..], &world.jump(end), &[SUB, 0, 1], &world.call(start), &[ADD, 1, 1, RETURN]]
            .concat();
    world.put(start, &code);
    start
}

#[test]
fn ret_1_the_return_handler_runs_once_for_each_accepted_call() {
    let world = World::new();
    let f = plus_five(world, "f");
    let caller = caller(world, f);
    let log = Log::new();
    let probe = R::at("f")
        .entry(move |call: &mut Call<'_, Toy>| {
            assert_eq!(call.pc().as_usize(), f);
            let argument = call.argument(0).unwrap();
            argument.is_multiple_of(2).then_some(argument)
        })
        .exit(move |ret: &mut Return<'_, Toy>, argument| log.add(format!("{argument} -> {}", ret.value())));
    let probe = world.probes.register(probe).unwrap();
    for argument in 0..4 {
        assert_eq!(world.value(caller, &[argument]), argument + 6);
    }
    assert_eq!(log.take(), ["0 -> 5", "2 -> 7"]);
    let counters = probe.counters();
    assert_eq!(
        (counters.hits, counters.vetoed, counters.missed_pool, counters.pool_high_water),
        (2, 2, 0, 1)
    );
}

#[test]
fn ret_2_without_a_free_instance_the_call_goes_on_unprobed() {
    let world = World::new();
    let f = recursive(world);
    let (entries, exits) = (counter(), counter());
    let probe = R::at("recursive")
        .max_active(3)
        .entry(move |_| {
            bump(entries);
            Some(())
        })
        .exit(move |_, ()| bump(exits));
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(world.run(f, &[9, 0]).1.r[1], 9);
    assert_eq!((entries.load(SeqCst), exits.load(SeqCst)), (3, 3));
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool, counters.pool_high_water), (3, 7, 3));
    assert_eq!(world.run(f, &[1, 0]).1.r[1], 1);
    assert_eq!((probe.counters().hits, probe.counters().missed_pool), (5, 7));
}

#[rstest]
#[case::default(0, 14)]
#[case::negative(-5, 14)]
#[case::own(20, 20)]
fn ret_3_the_default_is_max_of_10_and_twice_the_contexts(#[case] max_active: i32, #[case] instances: u64) {
    let world = World::new();
    let f = recursive(world);
    let probe = world.probes.register(R::at("recursive").max_active(max_active)).unwrap();
    assert_eq!(world.run(f, &[99, 0]).1.r[1], 99);
    let counters = probe.counters();
    assert_eq!((counters.hits, u64::from(counters.pool_high_water)), (instances, instances));
    assert_eq!(counters.missed_pool, 100 - instances);
}

#[test]
fn ret_3_calls_in_turn_use_one_instance_in_whichever_context() {
    let world = World::new();
    let f = recursive(world);
    let probe = world.probes.register(R::at("recursive").max_active(50)).unwrap();
    let call = |depth: usize| {
        let calls =
            std::thread::scope(|scope| scope.spawn(|| world.run(f, &[depth, 0]).1.r[1]).join().unwrap());
        assert_eq!(calls, depth);
        let counters = probe.counters();
        (counters.hits, counters.missed_pool, counters.pool_high_water)
    };
    assert_eq!([0, 0, 2, 0].map(call), [(1, 0, 1), (2, 0, 1), (5, 0, 3), (6, 0, 3)]);
    // More than tell by themselves whether they are free, all of them, and one too many.
    assert_eq!([39, 49, 50, 0].map(call), [(46, 0, 40), (96, 0, 50), (146, 1, 50), (147, 1, 50)]);
}

#[test]
fn ret_4_the_return_handler_sees_and_changes_what_it_should() {
    let world = World::new();
    let f = plus_five(world, "f");
    let caller = caller(world, f);
    let log = Log::new();
    let probe = R::at("f")
        .entry(move |call: &mut Call<'_, Toy>| {
            assert_eq!(call.return_address().as_usize(), caller + 5);
            Some(Arc::new(format!("call with {}", call.regs().r[0])))
        })
        .exit(move |ret: &mut Return<'_, Toy>, data| {
            log.add(data.as_str());
            assert_eq!(ret.pc().as_usize(), f);
            assert_eq!(ret.return_address().as_usize(), caller + 5);
            assert_eq!((ret.regs().pc, ret.value()), (caller + 5, 7));
            assert_eq!(ret.counters().hits, 1);
            ret.set_value(70);
        });
    let _probe = world.probes.register(probe).unwrap();
    assert_eq!(world.value(caller, &[2]), 71);
    assert_eq!(log.take(), ["call with 2"]);
    assert_eq!(world.host().pins.load(SeqCst), 0);
}

#[test]
fn ret_4_private_data_as_bytes() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = |len| {
        Kretprobe::<Toy>::bytes(
            "f",
            len,
            |call, data| {
                assert!(data.iter().all(|byte| *byte == 0));
                data.fill(call.regs().r[0] as u8);
                if call.regs().r[0] == 3 { Follow::No } else { Follow::Yes }
            },
            |ret, data| {
                let sum = data.iter().map(|byte| usize::from(*byte)).sum();
                ret.set_value(sum);
            },
        )
    };
    let first = world.probes.register(probe(100)).unwrap();
    assert_eq!(world.value(f, &[2]), 200);
    assert_eq!(world.value(f, &[3]), 8);
    assert_eq!(first.counters().vetoed, 1);
    assert!(world.probes.register(probe(4096)).is_ok());
    let error = world.probes.register(probe(4097)).unwrap_err();
    assert_eq!((error.errno(), error.code()), (probe_core::error::Errno::E2BIG, "kretprobe.data_too_big"));
}

#[test]
fn ret_5_recursion_gives_each_call_its_own_instance_innermost_first() {
    let world = World::new();
    let f = recursive(world);
    let log = Log::new();
    let probe = R::at("recursive")
        .entry(|call: &mut Call<'_, Toy>| call.argument(0))
        .exit(move |ret: &mut Return<'_, Toy>, depth| log.add(format!("{depth}:{}", ret.regs().r[1])));
    let _probe = world.probes.register(probe).unwrap();
    assert_eq!(world.run(f, &[4, 0]).1.r[1], 4);
    assert_eq!(log.take(), ["0:0", "1:1", "2:2", "3:3", "4:4"]);
}

#[rstest]
fn ret_5_several_probes_on_one_function_and_tail_calls_share_a_return(#[values(false, true)] by_jump: bool) {
    let world = World::new();
    let tail = world.function("tail", &[ADD, 0, 5, ADD, 0, 0, RETURN]);
    let f = world.function("f", &[&[ADD, 0, 10, NOP, NOP, NOP][..], &world.jump(tail)].concat());
    let caller = caller(world, f);
    let log = Log::new();
    let probe = |name: &'static str, on: &str| {
        let probe = R::at(on)
            .entry(move |call: &mut Call<'_, Toy>| {
                assert_eq!(call.return_address().as_usize(), caller + 5);
                log.add(format!("> {name}"));
                Some(())
            })
            .exit(move |ret: &mut Return<'_, Toy>, ()| {
                assert_eq!(ret.return_address().as_usize(), caller + 5);
                log.add(format!("< {name}"));
            });
        world.probes.register(probe).unwrap()
    };
    let probes = [probe("a", "f"), probe("b", "f"), probe("tail a", "tail"), probe("tail b", "tail")];
    if by_jump {
        assert_eq!(world.probes.jumps().lay(), Ok(2));
    }
    for _ in 0..3 {
        assert_eq!(world.value(caller, &[1]), 17);
        let events = ["> b", "> a", "> tail b", "> tail a", "< tail a", "< tail b", "< a", "< b"];
        assert_eq!(log.take(), events);
    }
    assert!(probes.iter().all(|probe| probe.counters().hits == 3 && probe.counters().abandoned == 0));
    // One alone, whose return address is a stub.
    let [_a, _b, _tail_a, tail_b] = probes;
    drop(tail_b);
    assert_eq!(world.value(caller, &[1]), 17);
    assert_eq!(log.take(), ["> b", "> a", "> tail a", "< tail a", "< a", "< b"]);
    assert!(world.host().current().1.is_idle());
}

#[test]
fn ret_6_unregistering_in_flight_lets_calls_return_without_a_handler() {
    let world = World::new();
    let f = recursive(world);
    let data = Arc::new(());
    let probe = {
        let data = data.clone();
        R::at("recursive").entry(move |_| Some(data.clone())).exit(|_, _| panic!("it has gone"))
    };
    let probe = world.probes.register(probe).unwrap();
    let mut cpu = world.cpu(f, &[5, 0]);
    while probe.counters().hits < 4 {
        assert_eq!(cpu.run(1), End::Timeout);
    }
    assert_eq!(Arc::strong_count(&data), 1 + 1 + 4);
    probe.unregister().unwrap();
    assert_eq!(Arc::strong_count(&data), 1 + 4, "the handlers are gone, the calls' data is not");
    assert_eq!(cpu.run(1000), End::Returned);
    assert_eq!(cpu.regs.r[1], 5);
    assert_eq!(Arc::strong_count(&data), 1);
    world.probes.register(K::at("end")).unwrap().unregister().unwrap();
    assert_eq!(world.host().live_chunks.load(SeqCst), 0, "the pool is freed by a later call");
}

#[rstest]
fn ret_6_the_pool_of_a_probe_that_has_gone_is_freed_by_a_registration_or_by_settling(
    #[values(true, false)] by_registration: bool,
) {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(R::at("f")).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    cpu.run(2);
    assert_eq!(probe.counters().hits, 1);
    probe.unregister().unwrap();
    world.probes.settle();
    assert_eq!(world.host().live_chunks.load(SeqCst), 2, "a slot, and the call in flight");
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(cpu.regs.r[0], 6);
    let other = by_registration.then(|| world.probes.register(K::at("f").disabled()).unwrap());
    if other.is_none() {
        world.probes.settle();
    }
    assert_eq!(world.host().live_chunks.load(SeqCst), 1, "the slot");
}

#[test]
fn ret_6_disabling_in_flight_stops_the_handler() {
    let world = World::new();
    let f = plus_five(world, "f");
    let exits = counter();
    let probe = world.probes.register(R::at("f").exit(move |_, ()| bump(exits))).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    cpu.run(2);
    assert_eq!(probe.counters().hits, 1);
    probe.disable().unwrap();
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!((cpu.regs.r[0], exits.load(SeqCst)), (6, 0));
}

#[test]
fn ret_7_task_exit_gives_instances_back() {
    let world = World::new();
    let f = recursive(world);
    let data = Arc::new(());
    let probe = {
        let data = data.clone();
        R::at("recursive").max_active(4).entry(move |_| Some(data.clone())).exit(|_, _| ())
    };
    let probe = world.probes.register(probe).unwrap();
    for round in 1..=5 {
        let mut cpu = world.cpu(f, &[50, 0]);
        while cpu.regs.r[0] > 20 {
            cpu.run(1);
        }
        assert_eq!(Arc::strong_count(&data), 6);
        assert!(!world.host().current().1.is_idle());
        world.probes.events().task_exit(world.host().current().1);
        assert!(world.host().current().1.is_idle());
        assert_eq!(Arc::strong_count(&data), 2);
        assert_eq!((probe.counters().hits, probe.counters().abandoned), (4 * round, 4 * round));
    }
}

#[test]
fn ret_7_calls_left_by_a_longjmp_are_dropped_when_met() {
    let world = World::new();
    let f = recursive(world);
    let g = plus_five(world, "g");
    let log = Log::new();
    let probe = |on: &str| {
        let probe = R::at(on).max_active(6).entry(|_| Some(())).exit(move |_, ()| log.add("returned"));
        world.probes.register(probe).unwrap()
    };
    let (probe, other) = (probe("recursive"), probe("g"));
    let mut cpu = world.cpu(f, &[9, 0]);
    let start = cpu.regs;
    while probe.counters().hits < 5 {
        cpu.run(1);
    }
    // longjmp: back to where the stack was, and on from there; what lies below is overwritten.
    cpu.regs = ToyRegs { pc: g, ..start };
    world.put(cpu.regs.sp - 256, &[0; 256]);
    world.put(cpu.regs.sp, &world.arena().to_ne_bytes());
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(log.take(), ["returned"], "only g has returned");
    assert_eq!((probe.counters().abandoned, other.counters().abandoned), (5, 0));
    assert!(world.host().current().1.is_idle());
    assert_eq!(world.run(f, &[5, 0]).1.r[1], 5);
    assert_eq!((probe.counters().hits, probe.counters().missed_pool), (11, 0));
}

#[test]
fn ret_7_an_empty_pool_is_healed_before_a_call_is_missed() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(R::at("f").max_active(2)).unwrap();
    for round in 1..=10 {
        // Each call is left on a stack of its own, which then is used for something else.
        let mut cpu = world.cpu(f, &[1]);
        cpu.run(2);
        let sp = cpu.regs.sp;
        std::mem::forget(cpu);
        world.put(sp, &[0; 8]);
        assert_eq!((probe.counters().hits, probe.counters().missed_pool), (round, 0));
    }
    assert!(probe.counters().abandoned >= 8);
}

#[test]
fn ret_7_and_ret_5_calls_on_switched_stacks_return_in_any_order() {
    let world = World::new();
    let f = plus_five(world, "f");
    let exits = Log::new();
    let probe = R::at("f")
        .entry(|call: &mut Call<'_, Toy>| call.argument(0))
        .exit(move |_, argument| exits.add(argument.to_string()));
    let _probe = world.probes.register(probe).unwrap();
    let mut cpus: Vec<_> = (0..4).map(|argument| world.cpu(f, &[argument])).collect();
    for cpu in &mut cpus {
        cpu.run(2);
    }
    for index in [1, 3, 0, 2] {
        assert_eq!(cpus[index].run(100), End::Returned);
        assert_eq!(cpus[index].regs.r[0], index + 5);
    }
    assert_eq!(exits.take(), ["1", "3", "0", "2"]);
    assert!(world.host().current().1.is_idle());
}

/// Makes the thread another task, and runs `work` as that.
fn as_other_task<T>(world: &'static World, other: Mine, work: impl FnOnce() -> T) -> T {
    let own = world.host().current();
    world.host().swap_task(Some(other));
    let result = work();
    world.host().swap_task(Some(own));
    result
}

type Mine = (&'static Context<Toy>, &'static Task<Toy>);

fn other_task(world: &'static World) -> Mine {
    let own = world.host().current();
    world.host().swap_task(None);
    let other = world.host().current();
    world.host().swap_task(Some(own));
    other
}

#[rstest]
#[case::owner_lives(false)]
#[case::owner_exits(true)]
fn ret_7_a_call_that_returns_in_another_task_is_cleared_away_by_its_owner(#[case] exits_first: bool) {
    let world = World::new();
    let f = plus_five(world, "f");
    let exits = counter();
    let probe = world.probes.register(R::at("f").max_active(1).exit(move |_, ()| bump(exits))).unwrap();
    let other = other_task(world);
    let mut cpu = world.cpu(f, &[1]);
    cpu.run(2);
    assert_eq!(as_other_task(world, other, || cpu.run(100)), End::Returned);
    assert_eq!((cpu.regs.r[0], exits.load(SeqCst)), (6, 1));
    let own = world.host().current().1;
    assert!(!own.is_idle());
    if exits_first {
        world.probes.events().task_exit(own);
        assert!(own.is_idle());
    }
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!((probe.counters().hits, probe.counters().missed_pool, exits.load(SeqCst)), (2, 0, 2));
}

#[test]
fn ret_8_real_return_addresses_are_shown_through_chains() {
    let world = World::new();
    let f = plus_five(world, "f");
    let caller = caller(world, f);
    let _two = [(); 2].map(|()| world.probes.register(R::at("f")).unwrap());
    let mut cpu = world.cpu(caller, &[1]);
    while cpu.regs.pc != f + 3 {
        cpu.run(1);
    }
    let mut on_stack = [0; size_of::<usize>()];
    on_stack.copy_from_slice(&world.bytes(cpu.regs.sp, size_of::<usize>()));
    let on_stack = CodeAddr::new(usize::from_ne_bytes(on_stack));
    assert_ne!(on_stack.as_usize(), caller + 5);
    assert_eq!(world.probes.real_return_address(on_stack), Some(CodeAddr::new(caller + 5)));
    assert_eq!(world.probes.real_return_address(CodeAddr::new(caller + 5)), None);
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(world.probes.real_return_address(on_stack), None);
}

#[test]
fn ret_9_kprobe_jprobe_body_return_handler_in_this_order() {
    let world = World::new();
    let f = plus_five(world, "f");
    let log = Log::new();
    let handler = world.function("handler", &[NOP, RETURN]);
    let _in_handler = world.probes.register(K::at("handler")).unwrap();
    // SAFETY: the handler takes no arguments.
    let jprobe = unsafe { probe_core::Jprobe::from_raw("f", handler) };
    let jprobe = world.probes.register(jprobe).unwrap();
    let ret = R::at("f")
        .entry(move |_| {
            log.add("entry");
            Some(())
        })
        .exit(move |_, ()| log.add("exit"));
    let _ret = world.probes.register(ret).unwrap();
    let _kprobe =
        world.probes.register(K::at("f").pre(move |_| log.add("pre")).post(move |_| log.add("post")));
    let _body = world.probes.register(K::at(at(f, 8)).pre(move |_| log.add("body"))).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(log.take(), ["pre", "entry", "post", "body", "exit"]);
    assert_eq!(jprobe.counters().hits, 1);
    assert_eq!(_in_handler.counters().missed_nested, 1, "the jprobe's handler ran");
}

#[test]
fn ret_10_a_return_that_matches_no_call_is_reported_and_stopped() {
    let world = World::new();
    let f = plus_five(world, "f");
    let _probe = world.probes.register(R::at("f")).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    cpu.run(2);
    let sp = cpu.regs.sp;
    let stub = usize::from_ne_bytes(world.bytes(sp, size_of::<usize>()).try_into().unwrap());
    assert_eq!(cpu.run(100), End::Returned);
    let pc = cpu.regs.pc;
    // The context never comes back, so it gets a thread that nobody joins.
    std::thread::spawn(move || {
        let mut cpu = world.cpu(f, &[1]);
        cpu.regs.pc = stub;
        cpu.run(1);
    });
    let (stopped, is_stopped) = &world.host().stopped;
    let stopped = is_stopped.wait_while(stopped.lock().unwrap(), |stopped| stopped.is_empty()).unwrap();
    assert_eq!(stopped.len(), 1);
    assert_ne!(stopped[0].pc, pc, "no address is guessed");
    let lost = Notice::LostReturn { stub: stub.into() };
    assert_eq!(*world.host().notices.lock().unwrap(), [lost]);
    // Others go on.
    assert_eq!(world.value(f, &[1]), 6);
}

/// A return probe on `f` that holds `data` while it follows a call, and counts returns.
fn keeping(world: &'static World, data: &Arc<()>, exits: &'static AtomicUsize) -> Probe<ToyHost> {
    let kept = data.clone();
    let probe = R::at("f").entry(move |_| Some(kept.clone())).exit(move |_, _| bump(exits));
    world.probes.register(probe).unwrap()
}

/// RET_2: where the return address cannot be replaced there is no call to follow.
#[test]
fn ret_2_a_call_whose_return_address_cannot_be_written_goes_on_unprobed() {
    let (world, data, exits) = (World::new(), Arc::new(()), counter());
    let f = plus_five(world, "f");
    let probe = keeping(world, &data, exits);
    let mut cpu = world.cpu(f, &[1]);
    // A stack that can be read and not be written: text.
    let home = world.function("home", &world.arena().to_ne_bytes());
    cpu.regs.sp = home;
    assert_eq!((cpu.run(100), cpu.regs.r[0]), (End::Returned, 6));
    let counters = probe.counters();
    assert_eq!((counters.missed_pool, exits.load(SeqCst), Arc::strong_count(&data)), (1, 0, 2));
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(exits.load(SeqCst), 1);
}

/// RET_2: a return in a context that the host has no room for finds its way, and is missed.
#[test]
fn ret_2_a_return_without_a_context_is_missed() {
    let (world, data, exits) = (World::new(), Arc::new(()), counter());
    let f = plus_five(world, "f");
    let probe = keeping(world, &data, exits);
    let mut cpu = world.cpu(f, &[1]);
    while probe.counters().hits == 0 {
        cpu.run(1);
    }
    assert_eq!(Arc::strong_count(&data), 3);
    world.host().has_contexts.store(false, SeqCst);
    assert_eq!((cpu.run(100), cpu.regs.r[0]), (End::Returned, 6));
    world.host().has_contexts.store(true, SeqCst);
    assert_eq!((exits.load(SeqCst), Arc::strong_count(&data), probe.counters().missed_nested), (0, 2, 1));
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(exits.load(SeqCst), 1);
}
