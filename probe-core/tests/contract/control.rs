//! CTL_1 to CTL_6.

use super::*;
use probe_core::Switch;
use probe_core::error::{EnableError, Errno};
use probe_core::files::Viewer;
use rstest::rstest;

fn list(world: &World, viewer: Viewer) -> String {
    let mut out = String::new();
    world.probes.files().list(&mut out, viewer).unwrap();
    out
}

fn enabled(world: &World) -> String {
    let mut out = String::new();
    world.probes.files().enabled(&mut out).unwrap();
    out
}

/// How many digits an address has.
const WIDTH: usize = 2 * size_of::<usize>();

#[test]
fn ctl_1_enabling_and_disabling_are_idempotent() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at("f")).unwrap();
    for _ in 0..2 {
        probe.disable().unwrap();
        assert_eq!((world.bytes(f, 1), probe.is_enabled()), (vec![ADD], false));
    }
    for _ in 0..2 {
        probe.enable().unwrap();
        assert_eq!((world.bytes(f, 1), probe.is_enabled()), (vec![BREAK], true));
    }
}

#[test]
fn ctl_1_a_failed_enable_leaves_it_disabled() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probe = world.probes.register(K::at("f").disabled()).unwrap();
    world.host().failing_write.store(1, SeqCst);
    assert_eq!(probe.enable().unwrap_err().errno(), Errno::EFAULT);
    assert_eq!((world.bytes(f, 1), probe.is_enabled()), (vec![ADD], false));
    probe.enable().unwrap();
    assert_eq!(world.bytes(f, 1), [BREAK]);
}

#[test]
fn ctl_2_the_switch_disarms_all_and_rearms_what_is_not_disabled() {
    let world = World::new();
    let f = plus_five(world, "f");
    let text = world.text();
    let probes = PLUS_FIVE.map(|offset| world.probes.register(K::at(at(f, offset)).pre(|_| ())).unwrap());
    probes[2].disable().unwrap();
    assert_eq!(enabled(world), "1\n");
    world.probes.switch(Switch::Off).unwrap();
    assert_eq!(enabled(world), "0\n");
    assert!(world.text() == text);
    assert_eq!(world.value(f, &[1]), 6);
    let late = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    probes[3].disable().unwrap();
    probes[2].enable().unwrap();
    assert!(world.text() == text, "while off nothing is planted");
    world.probes.switch(Switch::On).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert!(probes.iter().enumerate().all(|(index, probe)| probe.counters().hits == u64::from(index != 3)));
    assert_eq!(late.counters().hits, 1);
}

#[rstest]
#[case("1", Some(true))]
#[case("1\n", Some(true))]
#[case("y", Some(true))]
#[case("Y\n", Some(true))]
#[case("t", Some(true))]
#[case("T", Some(true))]
#[case("on", Some(true))]
#[case("On\n", Some(true))]
#[case("0", Some(false))]
#[case("n", Some(false))]
#[case("N", Some(false))]
#[case("f\n", Some(false))]
#[case("F", Some(false))]
#[case("off", Some(false))]
#[case("OFF", Some(false))]
#[case("", None)]
#[case("\n", None)]
#[case("2", None)]
#[case("o", None)]
#[case("maybe", None)]
fn ctl_2_the_switch_reads_booleans_as_the_kernel_does(#[case] text: &str, #[case] want: Option<bool>) {
    for before in [Switch::On, Switch::Off] {
        let world = World::new();
        world.probes.switch(before).unwrap();
        let result = world.probes.files().write_enabled(text);
        match want {
            Some(want) => assert_eq!((result, world.probes.is_on()), (Ok(()), want)),
            None => {
                assert_eq!(result.unwrap_err().errno(), Errno::EINVAL);
                assert_eq!(world.probes.is_on(), before == Switch::On);
            }
        }
    }
}

#[test]
fn ctl_3_the_list_has_the_kernels_format() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = world.function_in("g", Some("module"), &[NOP, ADD, 0, 5, RETURN]);
    let handler = world.function("handler", &[RETURN]);
    let _kprobe = world.probes.register(K::at(at(f, 3)).disabled()).unwrap();
    let _ret = world.probes.register(R::at("g")).unwrap();
    // SAFETY: the handler takes no arguments.
    let _jprobe = world.probes.register(unsafe { probe_core::Jprobe::from_raw("f", handler) }).unwrap();
    let want = format!(
        "{f:0WIDTH$x}  j  f+0x0    \n{:0WIDTH$x}  k  f+0x3    [DISABLED]\n{g:0WIDTH$x}  r  g+0x0  module \n",
        f + 3
    );
    assert_eq!(list(world, Viewer::Privileged), want);
    let hidden = list(world, Viewer::Unprivileged);
    assert!(hidden.lines().all(|line| line.starts_with(&format!("{:0WIDTH$}  ", 0))), "{hidden}");
    assert!(hidden.contains("k  f+0x3    [DISABLED]"));
}

#[test]
fn ctl_4_the_blacklist_has_the_kernels_format() {
    let world = World::new();
    let f = plus_five(world, "f");
    world.host().blacklist.lock().unwrap().push((f, f + 16, "f".into()));
    let mut out = String::new();
    world.probes.files().blacklist(&mut out, Viewer::Privileged).unwrap();
    assert_eq!(out, format!("0x{f:0WIDTH$x}-0x{:0WIDTH$x}\tf\n", f + 16));
    out.clear();
    world.probes.files().blacklist(&mut out, Viewer::Unprivileged).unwrap();
    assert_eq!(out, format!("0x{0:0WIDTH$}-0x{0:0WIDTH$}\tf\n", 0));
}

#[test]
fn ctl_5_probes_of_a_module_that_goes_become_gone() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = world.function_in("g", Some("module"), &[NOP, ADD, 0, 5, RETURN]);
    let stay = world.probes.register(K::at("f").pre(|_| ())).unwrap();
    let batch = [K::at(at(g, 0)).pre(|_| ()), K::at(at(g, 1)).post(|_| ())];
    let gone = world.probes.register_all(batch).unwrap();
    let ret = world.probes.register(R::at("g")).unwrap();
    assert_eq!(world.value(g, &[1]), 6);
    let writes = world.host().writes.load(SeqCst);
    world.probes.events().text_going(g.into(), (g + 5).into());
    // Other text is mapped there, or none.
    world.put(g, &[0xee; 5]);
    assert_eq!(world.host().writes.load(SeqCst), writes, "nothing is written to vanished text");
    assert!(gone.iter().all(|probe| probe.is_gone() && !probe.is_enabled()) && ret.is_gone());
    assert!(!stay.is_gone());
    let listing = list(world, Viewer::Privileged);
    assert_eq!(listing.matches("[GONE]").count(), 3, "{listing}");
    assert_eq!(gone[0].enable(), Err(EnableError::Gone(g.into())));
    assert_eq!(gone[0].enable().unwrap_err().errno(), Errno::EINVAL);
    gone[1].disable().unwrap();
    world.probes.switch(Switch::Off).unwrap();
    world.probes.switch(Switch::On).unwrap();
    assert_eq!(gone[0].counters().hits, 1);
    drop((gone, ret));
    assert_eq!(world.bytes(g, 5), [0xee; 5]);
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(stay.counters().hits, 1);
}

#[test]
fn ctl_5_the_same_place_can_be_probed_again_with_other_code() {
    let world = World::new();
    let g = world.function_in("g", Some("module"), &[ADD, 0, 5, NOP, RETURN]);
    let old = world.probes.register(K::at("g").pre(|_| ())).unwrap();
    assert_eq!(world.value(g, &[1]), 6);
    for code in [[BORROW, 0, NOP, NOP, RETURN], [ADD, 0, 7, NOP, RETURN], [SET, 0, 3, 0, RETURN]] {
        world.probes.events().text_going(g.into(), (g + 5).into());
        world.put(g, &code);
        let bare = world.value(g, &[1]);
        let new = world.probes.register(K::at("g").pre(|_| ())).unwrap();
        assert_eq!(world.value(g, &[1]), bare);
        assert_eq!(new.counters().hits, 1);
    }
    assert_eq!(old.counters().hits, 1);
}

#[test]
fn ctl_5_text_replaced_without_notice_is_decoded_anew() {
    let world = World::new();
    let g = world.function("g", &[ADD, 0, 5, NOP, RETURN]);
    let old = world.probes.register(K::at("g").pre(|_| ())).unwrap();
    assert_eq!(world.value(g, &[1]), 6);
    world.put(g, &[ADD, 0, 9, NOP, RETURN]);
    let new = world.probes.register(K::at("g").pre(|_| ())).unwrap();
    assert_eq!(world.value(g, &[1]), 10);
    assert_eq!((old.counters().hits, new.counters().hits), (1, 1));
    assert!(old.is_gone());
    drop((old, new));
    assert_eq!(world.bytes(g, 3), [ADD, 0, 9]);
}

#[test]
fn ctl_6_a_probe_is_listed_from_the_end_of_its_registration() {
    let world = World::new();
    plus_five(world, "f");
    assert_eq!(list(world, Viewer::Privileged), "");
    let probe = world.probes.register(K::at("f")).unwrap();
    assert_eq!(list(world, Viewer::Privileged).lines().count(), 1);
    drop(probe);
    assert_eq!(list(world, Viewer::Privileged), "");
}

#[test]
fn ctl_6_a_listing_is_refused_in_a_handler() {
    let world = World::new();
    let f = plus_five(world, "f");
    let log = Log::new();
    let _probe = world.probes.register(K::at("f").pre(move |_| {
        let mut out = String::new();
        log.add(format!("{:?} {out:?}", world.probes.files().list(&mut out, Viewer::Privileged)));
    }));
    world.value(f, &[1]);
    assert_eq!(log.take(), ["Err(Error) \"\""]);
}

#[test]
fn the_self_test_accepts_a_host_and_finds_what_it_lacks() {
    use probe_core::error::SelfTestError;
    let world = World::new();
    assert_eq!(world.probes.self_test(), Ok(()));
    world.host().failing_write.store(2, SeqCst);
    assert!(matches!(world.probes.self_test(), Err(SelfTestError::Text(_))));
    world.host().chunks_left.store(0, SeqCst);
    assert_eq!(world.probes.self_test(), Err(SelfTestError::NoExec));
    world.host().has_contexts.store(false, SeqCst);
    assert_eq!(world.probes.self_test(), Err(SelfTestError::Context));
    assert_eq!(world.host().live_chunks.load(SeqCst), 0);
}

#[test]
fn ctl_5_the_same_text_loaded_afresh_unnoticed_is_probed_afresh() {
    let world = World::new();
    let f = plus_five(world, "f");
    let original = world.bytes(f, 1);
    let (old, new) = (counter(), counter());
    let first = world.probes.register(K::at("f").pre(|_| bump(old))).unwrap();
    // An object has gone and come back at the same addresses before anybody looked.
    world.put(f, &original);
    let second = world.probes.register(K::at("f").pre(|_| bump(new))).unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!((old.load(SeqCst), new.load(SeqCst)), (0, 1));
    assert!(first.is_gone() && !second.is_gone());
    drop((first, second));
    assert_eq!(world.bytes(f, 1), original);
    assert_eq!(world.value(f, &[1]), 6);
}
