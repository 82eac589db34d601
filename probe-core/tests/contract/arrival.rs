//! REG_19 and REG_20: places where no call comes, and places that the host refuses.

use super::*;
use probe_core::error::{Errno, Refusal};
use probe_core::host::Arrival;
use probe_core::{Jprobe, Switch};

/// What a return probe, a jprobe and a kprobe are answered: nothing, or the error's code.
fn codes(world: &'static World, handler: usize, name: &str) -> [&'static str; 3] {
    let place = Place::symbol(name);
    // SAFETY: the handler takes no arguments.
    let jprobe = unsafe { Jprobe::<Toy>::from_raw(place.clone(), handler) };
    let told = |error: Option<RegisterError>| error.map_or("", |error| error.code());
    [
        told(world.probes.register(R::at(place.clone())).err()),
        told(world.probes.register(jprobe).err()),
        told(world.probes.register(K::at(place)).err()),
    ]
}

#[test]
fn reg_19_where_no_call_comes_only_kprobes_stand() {
    let world = World::new();
    let f = plus_five(world, "f");
    let handler = world.function("handler", &[RETURN]);
    let text = world.text();
    for (arrival, code) in [
        (Arrival::START, "entry.start"),
        (Arrival::PART, "entry.part"),
        (Arrival::SIGNAL_RETURN, "entry.signal_return"),
        (Arrival::READS_RETURN, "entry.reads_return"),
    ] {
        *world.host().arrivals.lock().unwrap() = vec![(f, arrival)];
        assert_eq!(codes(world, handler, "f"), [code, code, ""]);
        assert!(world.text() == text);
        let error = world.probes.register(R::at("f")).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(error.to_string().starts_with("no return probe or jprobe can stand at 0x"), "{error}");
        let told = world.probes.explain(&Place::symbol("f")).unwrap();
        assert_eq!((told.entry, told.is_entry), (Err(error), false));
    }
    *world.host().arrivals.lock().unwrap() = vec![(f, Arrival::Called)];
    assert_eq!(codes(world, handler, "f"), [""; 3]);
    assert_eq!(world.probes.explain(&Place::symbol("f")).unwrap().entry, Ok(()));
}

#[test]
fn reg_19_without_the_hosts_knowledge_the_name_decides() {
    let world = World::new();
    plus_five(world, "f");
    let part = plus_five(world, "f.cold");
    plus_five(world, "_start");
    let handler = world.function("handler", &[RETURN]);
    assert_eq!(codes(world, handler, "f"), [""; 3]);
    assert_eq!(codes(world, handler, "f.cold"), ["entry.part", "entry.part", ""]);
    assert_eq!(codes(world, handler, "_start"), ["entry.start", "entry.start", ""]);
    // By its address it is the same place, also where its instructions are taken on trust.
    let by_address = world.probes.register(R::at(at(part, 0))).unwrap_err();
    assert_eq!(by_address.code(), "entry.part");
    // SAFETY: its first instruction starts there.
    let trusted = unsafe { Place::unchecked(probe_core::CodeAddr::new(part)) };
    assert_eq!(world.probes.register(R::at(trusted)).unwrap_err().code(), "entry.part");
    // What the host knows comes first.
    *world.host().arrivals.lock().unwrap() = vec![(part, Arrival::Called)];
    assert_eq!(codes(world, handler, "f.cold"), [""; 3]);
}

#[test]
fn reg_20_what_the_host_refuses_is_refused_with_its_reason() {
    let world = World::new();
    let f = plus_five(world, "f");
    let text = world.text();
    let refusal = Refusal::invalid("toy.sequence", "nothing may interrupt it");
    world.host().refused.lock().unwrap().push((f + 3..f + 8, refusal));
    let result = |offset| world.probes.register(K::at(at(f, offset)));
    for offset in [3, 5] {
        let error = result(offset).unwrap_err();
        assert_eq!((error.errno(), error.code()), (Errno::EINVAL, "toy.sequence"));
        assert_eq!(world.probes.explain(&at(f, offset)).unwrap_err(), error);
        assert!(world.text() == text);
    }
    for offset in [0, 8] {
        drop(result(offset).unwrap());
    }
}

#[test]
fn reg_20_what_others_patch_is_not_displaced_by_a_jump() {
    let world = World::new();
    let f = world.function("f", &[ADD, 0, 3, ADD, 0, 2, RETURN]);
    // The jump displaces both. This is not an instruction's first byte.
    let patched = (f + 4..f + 5, Refusal::invalid("toy.patched", "somebody patches it"));
    world.host().refused.lock().unwrap().push(patched);
    world.probes.jumps().set_automatic(Switch::On);
    let behind = world.bytes(f + 1, 15);
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert_eq!((world.bytes(f, 1), world.bytes(f + 1, 15)), (vec![BREAK], behind), "the probe stands");
    let refusal = world.probes.explain(&"f".into()).unwrap().jump.unwrap_err();
    assert_eq!(refusal.code, "toy.patched");
    assert_eq!((world.value(f, &[1]), probe.counters().hits), (6, 1));
    drop(probe);
    world.host().refused.lock().unwrap().clear();
    let probe = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    assert_ne!(world.bytes(f, 1), [BREAK], "{:x?}", probe.addr());
}
