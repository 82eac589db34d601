//! Watchpoints: what the core does with a power that the toy's host has, and without it. And the self test on
//! a function.

use super::*;
use probe_core::error::{EnableError, Errno, SelfTestError};
use probe_core::files::Viewer;
use probe_core::{Switch, Watchpoint};

type W = Watchpoint<Toy>;

/// A world whose host has the debug registers of [`ToyHost`].
fn watching() -> &'static World {
    let world = World::new();
    world.host().has_watchpoints.store(true, SeqCst);
    world
}

/// What the host's registers watch: addresses, 0 where nothing.
fn armed(world: &World) -> [usize; 2] {
    [0, 1].map(|index| world.host().watched[index].load(SeqCst))
}

fn fire(world: &'static World, index: usize) {
    world.probes.traps().watchpoint(&mut ToyRegs::default(), index);
}

fn list(world: &World) -> String {
    let mut out = String::new();
    world.probes.files().list(&mut out, Viewer::Privileged).unwrap();
    out
}

#[test]
fn without_the_power_the_hosts_reason_is_told() {
    let error = World::new().probes.watch(W::at(0x1000, 8)).unwrap_err();
    assert_eq!((error.errno(), error.code()), (Errno::EOPNOTSUPP, "host.no_watchpoints"));
}

#[test]
fn a_register_is_armed_for_as_long_as_it_is_wanted() {
    let world = watching();
    let watch = world.probes.watch(W::at(0x1000, 8).read_write().disabled()).unwrap();
    assert_eq!(armed(world), [0, 0]);
    watch.enable().unwrap();
    assert_eq!(armed(world), [0x1000, 0]);
    watch.disable().unwrap();
    assert_eq!(armed(world), [0, 0]);
    watch.enable().unwrap();
    world.probes.switch(Switch::Off).unwrap();
    assert_eq!((armed(world), watch.is_enabled()), ([0, 0], true));
    world.probes.switch(Switch::On).unwrap();
    assert_eq!(armed(world), [0x1000, 0]);
    drop(watch);
    assert_eq!((armed(world), list(world)), ([0, 0], String::new()));
}

#[test]
fn registers_run_out_and_come_back() {
    let world = watching();
    let first = world.probes.watch(W::at(0x1000, 8)).unwrap();
    let second = world.probes.watch(W::at(0x2000, 8)).unwrap();
    let error = world.probes.watch(W::at(0x3000, 8)).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert!(error.to_string().contains("all 2"), "{error}");
    // Disabled, it keeps its register.
    second.disable().unwrap();
    assert!(world.probes.watch(W::at(0x3000, 8)).is_err());
    drop(first);
    let third = world.probes.watch(W::at(0x3000, 8)).unwrap();
    assert_eq!(armed(world), [0x3000, 0]);
    drop((second, third));
}

#[test]
fn what_the_host_cannot_arm_changes_nothing() {
    let world = watching();
    world.host().fails_to_watch.store(true, SeqCst);
    let error = world.probes.watch(W::at(0x1000, 8)).unwrap_err();
    assert_eq!((error.code(), list(world)), ("toy.busy", String::new()));
    let watch = world.probes.watch(W::at(0x1000, 8).disabled()).unwrap();
    assert!(matches!(watch.enable(), Err(EnableError::CannotWatch { at: 0x1000, .. })));
    assert!(!watch.is_enabled());
    world.host().fails_to_watch.store(false, SeqCst);
    watch.enable().unwrap();
    assert_eq!(armed(world), [0x1000, 0]);
}

#[test]
fn a_reference_calls_the_handler_and_a_handlers_is_missed() {
    let world = watching();
    plus_five(world, "f");
    let seen = counter();
    let watch = world.probes.watch(W::at(0x1000, 8).then(|_| bump(seen))).unwrap();
    fire(world, 0);
    assert_eq!((seen.load(SeqCst), watch.counters().hits), (1, 1));
    let probe = world.probes.register(K::at("f").pre(move |_| fire(world, 0))).unwrap();
    world.value(probe.addr().as_usize(), &[1]);
    assert_eq!((seen.load(SeqCst), watch.counters().hits, watch.counters().missed_nested), (1, 1, 1));
    // Nobody's: late, or never there.
    drop(watch);
    for index in [0, 1, 99] {
        fire(world, index);
    }
    assert_eq!(seen.load(SeqCst), 1);
}

#[test]
fn what_a_handler_asks_for_is_done_later() {
    let world = watching();
    plus_five(world, "f");
    let watch = world.probes.watch(W::at(0x1000, 8).then(|hit| hit.disable())).unwrap();
    fire(world, 0);
    fire(world, 0);
    assert_eq!((watch.counters().hits, armed(world)), (1, [0x1000, 0]));
    world.probes.settle();
    assert_eq!(armed(world), [0, 0]);
    // A handle that is dropped in a handler.
    let held = Mutex::new(Some(watch));
    let probe = world.probes.register(K::at("f").pre(move |_| drop(held.lock().unwrap().take()))).unwrap();
    world.value(probe.addr().as_usize(), &[1]);
    drop(probe);
    world.probes.settle();
    assert_eq!(list(world), "");
}

#[test]
fn memory_that_goes_takes_its_watchpoints_along() {
    let world = watching();
    let watch = world.probes.watch(W::at(0x1008, 8)).unwrap();
    world.probes.events().text_going(0x1000.into(), 0x2000.into());
    assert_eq!((armed(world), watch.is_gone()), ([0, 0], true));
    assert!(list(world).ends_with("[GONE]\n"), "{}", list(world));
    assert_eq!(watch.enable().unwrap_err().errno(), Errno::EINVAL);
    drop(watch);
    assert_eq!(list(world), "");
}

/// A trap's stack that begins anew at each trap: the inner hit's frame lies where the outer one's is.
#[cfg(not(miri))]
#[test]
fn the_self_test_finds_a_frame_that_a_nested_hit_overwrites() {
    let world = World::new();
    let f = plus_five(world, "f");
    let outer = AtomicUsize::new(0);
    let call = |is_overwritten: bool| {
        let mut cpu = world.cpu(f, &[1]);
        let word = (&raw mut cpu.regs.r[5]).expose_provenance();
        let is_inner = outer.compare_exchange(0, word, SeqCst, SeqCst).is_err();
        if is_inner && is_overwritten {
            let word = std::ptr::with_exposed_provenance_mut::<usize>(outer.load(SeqCst));
            // SAFETY: the outer call's, as a processor would write there.
            unsafe { word.write_volatile(77) };
        }
        assert_eq!((cpu.run(1000), cpu.regs.r[0]), (End::Returned, 6));
        if !is_inner {
            assert_eq!(cpu.regs.r[5], 0, "it is put back");
            outer.store(0, SeqCst);
        }
    };
    assert_eq!(world.probes.self_test_at("f", || call(false)), Ok(()));
    assert_eq!(world.probes.self_test_at("f", || call(true)), Err(SelfTestError::Nested));
    assert_eq!(list(world), "");
}

#[test]
fn the_self_test_on_a_function_accepts_a_host_and_finds_what_it_lacks() {
    let world = World::new();
    let f = plus_five(world, "f");
    let call = || {
        world.value(f, &[1]);
    };
    assert_eq!(world.probes.self_test_at("f", call), Ok(()));
    assert_eq!(list(world), "");
    // Its traps do not come here.
    assert_eq!(world.probes.self_test_at("f", || ()), Err(SelfTestError::NoBreakpoint));
    assert!(matches!(world.probes.self_test_at("g", call), Err(SelfTestError::Register(_))));
    world.host().failing_write.store(2, SeqCst);
    assert!(world.probes.self_test_at("f", call).is_err());
    assert_eq!(list(world), "");
}

#[test]
fn a_handler_sees_what_is_watched_and_the_registers_behind_the_reference() {
    let world = watching();
    let data = world.arena() + DATA;
    world.put(data, &7_usize.to_ne_bytes());
    let log = Log::new();
    let watch = W::at(data, 8).read_write().then(move |hit| {
        hit.regs_mut().r[3] = 9;
        log.add(format!("{} {:?} {}", hit.pc(), hit.value(), hit.regs().r[3]));
        assert_eq!((hit.range().addr, hit.range().len_bytes), (data, 8));
    });
    assert!(format!("{watch:?}").starts_with("Watchpoint { range: "), "{watch:?}");
    let watch = world.probes.watch(watch).unwrap().leak();
    let mut regs = ToyRegs { pc: 0x123, ..ToyRegs::default() };
    world.probes.traps().watchpoint(&mut regs, 0);
    assert_eq!((log.take(), regs.pc, regs.r[3]), (vec!["0x123 Ok(7) 9".to_owned()], 0x123, 9));
    assert!(watch.range().addr == data && format!("{watch:?}").contains("hits: 1"), "{watch:?}");
    // In a context that the host has no room for it is missed.
    world.host().has_contexts.store(false, SeqCst);
    fire(world, 0);
    assert_eq!((watch.counters().hits, watch.counters().missed_nested), (1, 1));
}
