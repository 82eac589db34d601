//! CTL_7: all probes stop, pending calls are handed back, and what remains is named.

use super::all_or_nothing::demanding_batch;
use super::kretprobe::recursive;
use super::optimise::plus_six;
use super::*;
use probe_core::error::{Errno, Remains, StopError, WatchError};
use probe_core::host::Task;
use probe_core::{Switch, Watchpoint};
use rstest::rstest;
use std::sync::Arc;

/// A world in which a return that is lost fails the test.
fn world() -> &'static World {
    let world = World::new();
    world.host().panics_at_stop.store(true, SeqCst);
    world
}

/// The task that runs on the stack of `cpu`, from here on on this thread's context.
fn task_of(world: &'static World, cpu: &Cpu) -> &'static Task<Toy> {
    let sp = cpu.regs.sp;
    let task = Box::leak(Box::new(Task::on_stack(sp - 1024..sp + 64)));
    world.host().swap_task(Some((world.host().current().0, task)));
    task
}

/// From here on the task of `cpu` waits where it is, and another one runs.
fn waits(world: &'static World, cpu: &Cpu, task: &'static Task<Toy>) {
    let (context, _) = world.host().current();
    world.host().swap_task(Some((context, Box::leak(Box::new(Task::new())))));
    let sp = cpu.regs.sp;
    world.host().waiting.lock().unwrap().push((task, sp..cpu.start_of_stack() + 8));
}

/// As [`recursive`], with room for a jump at its entry.
fn deep(world: &World) -> usize {
    let start = world.function("deep", &[NOP; 32]);
    let end = world.function("end", &[RETURN]);
    let again = [&[SUB, 0, 1][..], &world.call(start), &[ADD, 1, 1, RETURN]].concat();
    let code = [&[ADD, 2, 1, ADD, 2, 1, BRANCH, 0, 5][..], &world.jump(end), &again].concat();
    world.put(start, &code);
    start
}

fn is_nothing(remains: Remains) {
    assert!(remains.is_nothing(), "{remains}");
}

#[test]
fn ctl_7_after_a_stop_text_is_original_no_handler_runs_and_nothing_is_registered() {
    let world = world();
    world.host().has_watchpoints.store(true, SeqCst);
    let f = plus_six(world, "f");
    plus_five(world, "g");
    let text = world.text();
    let calls = counter();
    let counting = K::at("f").pre(move |_| bump(calls)).post(move |_| bump(calls));
    let mut probes = vec![world.probes.register(counting).unwrap()];
    let others = PLUS_FIVE.map(|offset| K::at(Place::symbol("g").offset(offset)));
    probes.extend(world.probes.register_all(others).unwrap());
    world.probes.jumps().lay().unwrap();
    let watch = world.probes.watch(Watchpoint::at(0x1000, 8)).unwrap();
    assert_eq!((world.value(f, &[1]), calls.load(SeqCst)), (7, 2));
    let stopped = world.probes.stop().unwrap();
    assert!(world.text() == text);
    assert_eq!(world.host().watched[0].load(SeqCst), 0);
    assert_eq!((world.value(f, &[1]), calls.load(SeqCst)), (7, 2));
    let error = world.probes.register(K::at("f")).unwrap_err();
    assert_eq!((error.errno(), error.code()), (Errno::ESHUTDOWN, "probes.stopped"));
    assert_eq!(world.probes.watch(Watchpoint::at(0x1000, 8)).unwrap_err(), WatchError::Stopped);
    // Nobody brings one back.
    assert!(probes.iter().all(|probe| probe.is_gone() && probe.enable().is_err()) && watch.enable().is_err());
    world.probes.switch(Switch::Off).unwrap();
    world.probes.switch(Switch::On).unwrap();
    world.probes.jumps().lay().unwrap();
    assert!(world.text() == text);
    let remains = stopped.drain().unwrap();
    assert_eq!((remains.calls, remains.stubs, remains.probes), (0, 0, probes.len() + 1));
    drop((probes, watch));
    let remains = stopped.drain().unwrap();
    assert_eq!((remains.calls, remains.stubs, remains.probes), (0, 0, 0));
    assert!(remains.detours != 0, "nobody knows whether a context is in one");
    assert!(remains.to_string().contains("detours"), "{remains}");
    stopped.start_again().unwrap();
    let probe = world.probes.register(K::at("f").pre(move |_| bump(calls))).unwrap();
    assert_eq!((world.value(f, &[1]), probe.counters().hits), (7, 1));
}

#[test]
fn ctl_7_where_nothing_lingers_all_memory_is_given_back() {
    let world = world();
    let f = plus_five(world, "f");
    plus_five(world, "g");
    let _ = (world.host().current(), world.value(f, &[1]));
    let batch = demanding_batch(world);
    let (text, live) = (world.text(), alloc_count::live());
    let probes = world.probes.register_all(batch).unwrap();
    let stopped = world.probes.stop().unwrap();
    drop(probes);
    is_nothing(stopped.drain().unwrap());
    assert!(world.text() == text);
    assert_eq!(world.host().live_chunks.load(SeqCst), 0);
    assert!(alloc_count::live() <= live);
}

#[test]
fn ctl_7_from_a_handler_nothing_stops() {
    let world = world();
    let f = plus_five(world, "f");
    let seen = counter();
    let stopped = Mutex::new(world.probes.stop().unwrap());
    stopped.lock().unwrap().start_again().unwrap();
    let pre = move |_: &mut Hit<'_, Toy>| {
        let stopped = stopped.lock().unwrap();
        assert!(matches!(world.probes.stop(), Err(StopError::InHandler)));
        assert_eq!(stopped.drain(), Err(StopError::InHandler));
        assert_eq!(stopped.start_again(), Err(StopError::InHandler));
        bump(seen);
    };
    let probe = world.probes.register(K::at("f").pre(pre)).unwrap();
    assert_eq!((world.value(f, &[1]), world.value(f, &[1])), (6, 6));
    assert_eq!((seen.load(SeqCst), probe.counters().hits, probe.is_gone()), (2, 2, false));
}

/// One text cannot be written: all else has stopped, and a second stop does the rest.
#[test]
fn ctl_7_a_stop_that_fails_can_be_tried_again() {
    let world = world();
    let f = plus_five(world, "f");
    plus_five(world, "g");
    let text = world.text();
    let calls = counter();
    let probes = ["f", "g"].map(|name| world.probes.register(K::at(name).pre(move |_| bump(calls))).unwrap());
    world.host().failing_write.store(1, SeqCst);
    assert!(matches!(world.probes.stop(), Err(StopError::Text(_))));
    assert_eq!(world.text().iter().filter(|byte| **byte == BREAK).count(), 1);
    assert_eq!((world.value(f, &[1]), calls.load(SeqCst)), (6, 0));
    assert!(world.probes.register(K::at("f")).is_err());
    let stopped = world.probes.stop().unwrap();
    assert!(world.text() == text);
    drop(probes);
    // Which one it is, and so whether its slot has been run in, is the table's order.
    let remains = stopped.drain().unwrap();
    assert_eq!((remains.calls, remains.probes), (0, 0), "{remains}");
}

/// A task waits in calls that two return probes follow, each of which has data that is dropped once.
#[rstest]
fn ctl_7_waiting_calls_get_their_return_addresses_back(
    #[values(false, true)] by_jump: bool,
    #[values(false, true)] dropped_before: bool,
    #[values(false, true)] is_listed: bool,
) {
    let world = world();
    let f = deep(world);
    let _ = world.host().current();
    let token = Arc::new(());
    let exits = counter();
    let probes: Vec<_> = (0..2)
        .map(|_| {
            let token = token.clone();
            let probe = R::at("deep").max_active(8).entry(move |_| Some(token.clone()));
            world.probes.register(probe.exit(move |_, _| bump(exits))).unwrap()
        })
        .collect();
    if by_jump {
        world.probes.jumps().lay().unwrap();
    }
    let mut cpu = world.cpu(f, &[9, 0]);
    let task = task_of(world, &cpu);
    if !is_listed {
        let (context, _) = world.host().current();
        world.host().swap_task(Some((context, Box::leak(Box::new(Task::new())))));
    }
    while probes.iter().map(|probe| probe.counters().hits).sum::<u64>() < 10 {
        cpu.run(1);
    }
    assert_eq!((Arc::strong_count(&token), task.is_idle()), (13, !is_listed));
    let mut probes = Some(probes);
    if dropped_before {
        probes = None;
    }
    waits(world, &cpu, task);
    let stopped = world.probes.stop().unwrap();
    let remains = stopped.drain().unwrap();
    assert_eq!((remains.calls, remains.stubs, remains.call), (0, 0, None), "{remains}");
    assert!(task.is_idle());
    drop(probes);
    let remains = stopped.drain().unwrap();
    assert_eq!((remains.stubs, remains.probes), (0, 0), "{remains}");
    // By trap the first instruction ran in its slot, without a frame.
    assert_eq!((remains.slots, remains.detours), if by_jump { (0, 1) } else { (1, 0) });
    assert_eq!(Arc::strong_count(&token), 1);
    // The return stubs have gone: nothing there can be executed.
    assert_eq!((cpu.run(1000), cpu.regs.r[1], exits.load(SeqCst)), (End::Returned, 9, 0));
}

/// A return address that is not where the host says, cannot be written, or is signed stays, and returns.
#[rstest]
fn ctl_7_what_cannot_be_put_back_is_named_and_returns_by_its_stub(
    #[values("elsewhere", "signed", "signed with a remnant", "another task's")] why: &str,
) {
    let world = world();
    let f = plus_five(world, "f");
    let probe = world.probes.register(R::at("f").entry(|_| Some(())).exit(|_, ()| ())).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    let task = task_of(world, &cpu);
    cpu.run(2);
    let frame = cpu.regs.sp;
    let stub = usize::from_ne_bytes(world.bytes(frame, 8).try_into().unwrap());
    waits(world, &cpu, task);
    let mut waiting = world.host().waiting.lock().unwrap();
    match why {
        "elsewhere" => waiting[0].1.start += 8,
        "another task's" => waiting[0].0 = Box::leak(Box::new(Task::new())),
        _ => world.put(frame, &(stub | SIGNED).to_ne_bytes()),
    }
    if why == "signed with a remnant" {
        world.put(frame - 16, &stub.to_ne_bytes());
        waiting[0].1.start -= 16;
    }
    drop(waiting);
    let stopped = world.probes.stop().unwrap();
    drop(probe);
    let remains = stopped.drain().unwrap();
    let is_left = why == "elsewhere";
    assert_eq!((remains.calls, remains.stubs), (usize::from(!is_left), 0), "{remains}");
    if is_left {
        // Below the stack pointer of a task that waits, says the host: left by a longjmp.
        assert!(task.is_idle());
        return;
    }
    assert_eq!(remains.call.unwrap().as_usize(), world.arena());
    assert!(remains.to_string().contains("returns to"), "{remains}");
    world.put(frame, &stub.to_ne_bytes());
    assert_eq!((cpu.run(100), cpu.regs.r[0]), (End::Returned, 6));
    let remains = stopped.drain().unwrap();
    assert_eq!((remains.calls, remains.stubs, remains.probes), (0, 0, 0), "{remains}");
}

/// A remnant of an older call's return address lies below the newer one's, which stands for it and is signed:
/// the older one stays with it.
#[test]
fn ctl_7_a_call_stays_with_the_newer_one_that_stands_for_it() {
    let world = world();
    let (f, g) = (plus_five(world, "f"), plus_five(world, "g"));
    let _probes = ["f", "g"].map(|name| world.probes.register(R::at(name).exit(|_, ()| ())).unwrap());
    let mut cpu = world.cpu(f, &[1]);
    let task = task_of(world, &cpu);
    let frame = cpu.regs.sp;
    let word = || usize::from_ne_bytes(world.bytes(frame, 8).try_into().unwrap());
    cpu.run(2);
    let older = word();
    // As a tail call.
    cpu.regs.pc = g;
    cpu.run(2);
    let newer = word();
    assert_ne!(older, newer);
    world.put(frame - 8, &older.to_ne_bytes());
    world.put(frame, &(newer | SIGNED).to_ne_bytes());
    world.host().waiting.lock().unwrap().push((task, frame - 8..frame + 8));
    let stopped = world.probes.stop().unwrap();
    assert_eq!(stopped.drain().unwrap().calls, 2);
    world.put(frame, &newer.to_ne_bytes());
    assert_eq!(cpu.run(100), End::Returned);
    assert_eq!(stopped.drain().unwrap().calls, 0);
}

/// Calls of a task that waits which a longjmp has left, or which have returned on another task, hold nothing.
#[test]
fn ctl_7_calls_that_were_left_are_cleared_away() {
    let world = world();
    let f = recursive(world);
    let token = Arc::new(());
    let data = token.clone();
    let probe = R::at("recursive").max_active(8).entry(move |_| Some(data.clone())).exit(|_, _| ());
    let probe = world.probes.register(probe).unwrap();
    let mut cpu = world.cpu(f, &[9, 0]);
    let task = task_of(world, &cpu);
    let start = cpu.regs;
    while probe.counters().hits < 5 {
        cpu.run(1);
    }
    cpu.regs = start;
    waits(world, &cpu, task);
    let stopped = world.probes.stop().unwrap();
    assert_eq!(stopped.drain().unwrap().calls, 0);
    // The outermost one's frame is the stack pointer's: it was handed back.
    assert_eq!((probe.counters().abandoned, task.is_idle(), Arc::strong_count(&token)), (4, true, 2));
    drop(probe);
    is_nothing(stopped.drain().unwrap());
}

/// Once probes can be registered again, an old [`probe_core::Stopped`] hands back none of their calls.
#[test]
fn ctl_7_a_drain_after_the_start_takes_no_call_from_new_probes() {
    let world = world();
    let f = plus_five(world, "f");
    let (first, second) = (world.probes.stop().unwrap(), world.probes.stop().unwrap());
    first.start_again().unwrap();
    let exits = counter();
    let _probe = world.probes.register(R::at("f").exit(move |_, ()| bump(exits))).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    let task = task_of(world, &cpu);
    cpu.run(2);
    waits(world, &cpu, task);
    assert_eq!(second.drain().unwrap().calls, 1);
    assert_eq!((cpu.run(100), exits.load(SeqCst)), (End::Returned, 1));
}

/// A context is in a slot, in a frame: it is named as long as it is there.
#[test]
fn ctl_7_a_slot_in_a_frame_is_named() {
    let world = world();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at("f").pre(|_| ()).post(|_| ())).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    cpu.run(1);
    let stopped = world.probes.stop().unwrap();
    drop(probe);
    assert_eq!(stopped.drain().unwrap().slots, 1);
    assert_eq!((cpu.run(100), cpu.regs.r[0]), (End::Returned, 6));
    is_nothing(stopped.drain().unwrap());
}
