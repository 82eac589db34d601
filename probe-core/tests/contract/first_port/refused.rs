//! What an architecture without calls and jumps answers to those who ask for them.

use super::*;
use probe_core::error::Errno;
use probe_core::{Jprobe, Switch};

#[test]
fn reg_9_a_return_probe_or_a_jprobe_is_refused_with_a_sentence() {
    let world = World::new();
    let f = plus_five(world, "f");
    let text = world.text();
    // SAFETY: the handler takes no arguments.
    let jprobe = unsafe { Jprobe::<Toy>::from_raw("f", f) };
    let errors = [
        world.probes.register(R::at("f")).map(drop),
        world.probes.register(R::at("f").entry(|_| Some(1)).exit(|_, _| ())).map(drop),
        world.probes.register(jprobe).map(drop),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!((error.errno(), error.code()), (Errno::EOPNOTSUPP, "core.no_calls"));
        let sentence = "calls cannot be followed on this architecture (core.no_calls)";
        assert!(error.to_string().ends_with(sentence), "{error}");
    }
    let explained = world.probes.explain(&at(f, 0)).unwrap();
    assert_eq!(explained.entry.unwrap_err().code(), "core.no_calls");
    assert!(world.text() == text);
}

#[test]
fn hit_1_probes_keep_their_breakpoints_where_there_are_no_jumps() {
    let world = World::new();
    let f = plus_five(world, "f");
    world.probes.jumps().set_automatic(Switch::On);
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert_eq!((world.probes.jumps().lay(), world.bytes(f, 1)), (Ok(0), vec![BREAK]));
    assert_eq!(world.probes.explain(&at(f, 0)).unwrap().jump.unwrap_err().code, "core.no_jumps");
    assert_eq!((world.value(f, &[1]), probe.counters().hits), (6, 1));
    world.probes.jumps().lift().unwrap();
    drop(probe);
    assert_eq!(world.bytes(f, 1), [ADD]);
}

#[test]
fn reg_9_the_self_test_asks_for_no_return_where_none_can_be_followed() {
    let world = World::new();
    let f = plus_five(world, "f");
    world.probes.self_test().unwrap();
    world.probes.self_test_at(at(f, 0), || assert_eq!(world.value(f, &[1]), 6)).unwrap();
}
