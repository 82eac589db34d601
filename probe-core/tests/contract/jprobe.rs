//! JMP_1 to JMP_3.

use super::*;
use probe_core::Jprobe;
use rstest::rstest;

/// Stores r0, r1, r2 and the first argument on the stack where a test finds them, then spoils them all.
fn recording_handler(world: &World) -> (usize, usize) {
    let data = world.arena() + DATA;
    // r5 = the address, built in memory: the toy has no wide constants.
    world.put(data + 64, &data.to_ne_bytes());
    let handler = world.function(
        "handler",
        &[
            STORE, 5, 0, ADD, 5, 8, STORE, 5, 1, ADD, 5, 8, STORE, 5, 2, SET, 0, 1, 1, SET, 1, 2, 2, SET, 2,
            3, 3, SET, 5, 4, 4, SET, 6, 4, 4, SET, 7, 4, 4, RETURN,
        ],
    );
    (handler, data)
}

fn jprobe(on: &str, handler: usize) -> Jprobe<Toy> {
    // SAFETY: the handlers of these tests take what the functions take.
    unsafe { Jprobe::from_raw(on, handler) }
}

/// Runs `f` with r5 pointing to where the handler writes.
fn run(world: &'static World, f: usize, data: usize) -> (End, ToyRegs) {
    let mut cpu = world.cpu(f, &[1, 2, 3, 4, 5]);
    cpu.regs.r[5] = data;
    (cpu.run(1000), cpu.regs)
}

#[rstest]
fn jmp_1_to_3_the_handler_gets_copies_and_the_function_its_own(
    #[values(&[ADD, 0, 1, RETURN], &[BORROW, 0, RETURN], &[PUSH, 0, HALT], &[SYSTEM, 0, RETURN])]
    code: &'static [u8],
) {
    let world = World::new();
    let f = world.function("f", code);
    let (handler, data) = recording_handler(world);
    let bare = run(world, f, data);
    world.put(data, &[0; 24]);
    let probe = world.probes.register(jprobe("f", handler)).unwrap();
    for round in 1..=3 {
        assert_eq!(run(world, f, data), bare, "registers as without a probe");
        let stored = [0, 8, 16].map(|offset| world.bytes(data + offset, size_of::<usize>()));
        assert_eq!(stored, [1, 2, 3].map(|argument| usize::to_ne_bytes(argument).to_vec()));
        assert_eq!(probe.counters().hits, round);
    }
    assert_eq!((world.host().current().0.depth(), world.host().pins.load(SeqCst)), (0, 0));
    assert!(!world.host().current().0.is_inside());
}

#[test]
fn jmp_1_a_stack_that_cannot_be_written_is_counted_and_the_function_runs() {
    let world = World::new();
    let f = world.function("f", &[ADD, 0, 1, HALT]);
    let handler = world.function("handler", &[HALT]);
    let probe = world.probes.register(jprobe("f", handler)).unwrap();
    let mut cpu = world.cpu(f, &[1]);
    cpu.regs.sp = 640;
    assert_eq!((cpu.run(10), cpu.regs.r[0]), (End::Halted, 2));
    assert_eq!((probe.counters().hits, probe.counters().missed_nested), (0, 1));
    assert_eq!(cpu.regs.pc, f + 3);
}

#[test]
fn jmp_2_post_handlers_of_the_place_run_after_the_function_has_begun() {
    let world = World::new();
    let f = plus_five(world, "f");
    let handler = world.function("handler", &[SET, 0, 9, 9, RETURN]);
    let log = Log::new();
    let _jprobe = world.probes.register(jprobe("f", handler)).unwrap();
    let _kprobe = world
        .probes
        .register(K::at("f").pre(move |_| log.add("pre")).post(move |_| log.add("post")))
        .unwrap();
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(log.take(), ["pre", "post"]);
}

#[test]
fn jmp_2_while_the_handler_runs_other_probes_are_missed() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let handler = world.function("handler", &[&world.call(g)[..], &[RETURN]].concat());
    let _jprobe = world.probes.register(jprobe("f", handler)).unwrap();
    let inner: Vec<_> =
        PLUS_FIVE.map(|offset| world.probes.register(K::at(at(g, offset)).pre(|_| ())).unwrap()).into();
    assert_eq!(world.value(f, &[1]), 6);
    assert!(inner.iter().all(|probe| probe.counters().hits == 0 && probe.counters().missed_nested == 1));
    assert_eq!(world.value(g, &[1]), 6);
    assert!(inner.iter().all(|probe| probe.counters().hits == 1));
}

#[test]
fn jmp_3_typed_handlers_give_their_address() {
    extern "C" fn handler(_: usize, _: *const u8) -> i32 {
        0
    }
    let world = World::new();
    plus_five(world, "f");
    // SAFETY: it is never called.
    let probe: Jprobe<Toy> = unsafe { Jprobe::at("f", handler as extern "C" fn(usize, *const u8) -> i32) };
    assert!(world.probes.register(probe.disabled()).is_ok());
}
