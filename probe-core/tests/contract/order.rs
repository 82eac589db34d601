//! SAFE_2 and SAFE_3, step by step: at every write of text that an operation makes, before it and after it,
//! the program runs and ends as without probes.

use super::*;
use probe_core::handler::Answer;
use probe_core::{Probe, Switch};

/// Five bytes of instructions that a jump may displace, and more of every method.
fn jumpable(world: &World, name: &str) -> usize {
    world.function(name, &[NOP, ADD, 0, 2, NOP, ADD, 0, 3, BORROW, 0, SUB, 0, 1, RETURN])
}

/// The offsets of its instructions.
const JUMPABLE: [isize; 7] = [0, 1, 4, 5, 8, 10, 13];

/// Runs `operation` while every write of text is preceded and followed by a run of all functions.
fn watched<R>(
    world: &'static World,
    functions: &'static [usize],
    operation: impl FnOnce() -> R,
) -> (R, usize) {
    let seen = counter();
    let check = move |_| {
        bump(seen);
        for function in functions {
            assert_eq!(world.value(*function, &[1]), 6, "at moment {}", seen.load(SeqCst));
        }
    };
    *world.host().text_hook.lock().unwrap() = Some(Box::new(check));
    let result = operation();
    *world.host().text_hook.lock().unwrap() = None;
    (result, seen.load(SeqCst))
}

#[test]
fn safe_2_at_every_write_of_text_the_program_goes_on() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = jumpable(world, "g");
    let functions: &'static [usize] = Box::leak(Box::new([f, g]));
    let text = world.text();
    let batch = || {
        let on_f = PLUS_FIVE.map(|offset| K::at(at(f, offset)).pre(|_| ()).post(|_| ()));
        let on_g = JUMPABLE.map(|offset| K::at(at(g, offset)).pre(|_| ()));
        on_f.into_iter().chain(on_g).collect::<Vec<_>>()
    };
    let (probes, moments) = watched(world, functions, || world.probes.register_all(batch()).unwrap());
    assert!(moments > 40, "only {moments} moments");
    let mut moments = 0;
    let mut watch = |operation: &dyn Fn()| moments += watched(world, functions, operation).1;
    watch(&|| world.probes.switch(Switch::Off).unwrap());
    watch(&|| world.probes.switch(Switch::On).unwrap());
    watch(&|| probes.iter().for_each(|probe| probe.disable().unwrap()));
    watch(&|| probes.iter().for_each(|probe| probe.enable().unwrap()));
    assert!(moments > 80, "only {moments} moments");
    let (kept, _) = watched(world, functions, || world.probes.unregister_all(probes));
    assert!(kept.is_ok());
    assert!(world.text() == text);
}

#[test]
fn safe_3_at_every_write_of_a_jump_the_program_goes_on() {
    let world = World::new();
    let g = jumpable(world, "g");
    let functions: &'static [usize] = Box::leak(Box::new([g]));
    let text = world.text();
    let first: Probe<ToyHost> = world.probes.register(K::at(at(g, 0)).pre(|_| ())).unwrap();
    let (made, laid) = watched(world, functions, || world.probes.jumps().lay().unwrap());
    assert_eq!(made, 1);
    assert!(laid >= 8, "only {laid} moments");
    let (_, taken) = watched(world, functions, || world.probes.jumps().lift().unwrap());
    assert!(taken >= 8, "only {taken} moments");
    watched(world, functions, || world.probes.jumps().lay().unwrap());
    // A probe among what the jump displaces takes it away, and its own end lets it stay away.
    let (second, _) =
        watched(world, functions, || world.probes.register(K::at(at(g, 1)).pre(|_| ())).unwrap());
    watched(world, functions, || second.unregister().unwrap());
    watched(world, functions, || world.probes.jumps().lay().unwrap());
    watched(world, functions, || first.unregister().unwrap());
    assert!(world.text() == text);
}

/// Whoever hits a breakpoint as soon as it stands there finds its point armed: a fault of the simulated
/// instruction is its probe's.
#[test]
fn safe_2_a_breakpoint_counts_from_its_first_moment() {
    let world = World::new();
    // PUSH with a stack pointer that cannot be written: simulated, and faults.
    let f = world.function("f", &[PUSH, 1, RETURN]);
    let asked = counter();
    let probe = K::at("f").disabled().fault(move |hit, _| {
        bump(asked);
        hit.regs_mut().pc += 2;
        Answer::Handled
    });
    let probe = world.probes.register(probe).unwrap();
    let written = counter();
    let hook = move |moment| {
        if moment == Moment::AfterWrite {
            bump(written);
            let mut cpu = world.cpu(f, &[]);
            cpu.regs.sp = world.arena() + 8;
            let _ = cpu.run(2);
        }
    };
    *world.host().text_hook.lock().unwrap() = Some(Box::new(hook));
    probe.enable().unwrap();
    *world.host().text_hook.lock().unwrap() = None;
    assert_eq!((written.load(SeqCst), asked.load(SeqCst)), (1, 1));
}

/// What one write of text has changed: the offsets in the function, and how often the cores had been
/// synchronised before.
type Written = (Vec<usize>, usize);

/// The writes to the `len` bytes at `function` that `operation` makes.
fn writes_of(world: &'static World, function: usize, len: usize, operation: impl FnOnce()) -> Vec<Written> {
    let writes: &'static Mutex<Vec<Written>> = Box::leak(Box::default());
    let begun = world.host().syncs.load(SeqCst);
    let mut before = world.bytes(function, len);
    let note = move |moment| {
        let now = world.bytes(function, len);
        if moment == Moment::AfterWrite && now != before {
            let changed = (0..len).filter(|offset| now[*offset] != before[*offset]).collect();
            writes.lock().unwrap().push((changed, world.host().syncs.load(SeqCst) - begun));
            before = now;
        }
    };
    *world.host().text_hook.lock().unwrap() = Some(Box::new(note));
    operation();
    *world.host().text_hook.lock().unwrap() = None;
    writes.lock().unwrap().clone()
}

/// Breakpoints where displaced instructions start, then what lies between, then the first byte; backwards in
/// reverse. The cores are synchronised between the stages, and after the last.
#[test]
fn safe_3_a_jump_is_laid_in_stages_with_a_synchronisation_after_each() {
    let world = World::new();
    let g = jumpable(world, "g");
    let probe = world.probes.register(K::at(at(g, 0)).pre(|_| ())).unwrap();
    let before = world.host().syncs.load(SeqCst);
    let laid = writes_of(world, g, 8, || assert_eq!(world.probes.jumps().lay(), Ok(1)));
    // NOP, ADD of three bytes, NOP: the jump's five bytes.
    let expected = [(vec![1], 0), (vec![4], 0), (vec![2, 3], 1), (vec![0], 2)];
    assert_eq!(laid, expected);
    assert_eq!(world.host().syncs.load(SeqCst) - before, 3);
    let before = world.host().syncs.load(SeqCst);
    let taken = writes_of(world, g, 8, || world.probes.jumps().lift().unwrap());
    let expected = [(vec![0], 0), (vec![2, 3], 1), (vec![1], 2), (vec![4], 2)];
    assert_eq!(taken, expected);
    assert_eq!(world.host().syncs.load(SeqCst) - before, 3);
    drop(probe);
}

/// Whichever write fails: before and after each other one the program runs.
#[test]
fn safe_3_at_every_write_of_a_jump_that_fails_the_program_goes_on() {
    for number in 1.. {
        let world = World::new();
        let g = jumpable(world, "g");
        let functions: &'static [usize] = Box::leak(Box::new([g]));
        let text = world.text();
        let probe = world.probes.register(K::at(at(g, 0)).pre(|_| ())).unwrap();
        let fail = || world.host().failing_write.store(number, SeqCst);
        fail();
        let (laid, _) = watched(world, functions, || world.probes.jumps().lay());
        let was_reached = world.host().failing_write.swap(0, SeqCst) == 0;
        // Where the detour itself cannot be written, the place has none.
        assert_eq!(laid == Ok(1), !was_reached, "write {number}: {laid:?}");
        watched(world, functions, || world.probes.jumps().lay().unwrap());
        fail();
        let (taken, _) = watched(world, functions, || world.probes.jumps().lift());
        assert_eq!(taken.is_ok(), world.host().failing_write.swap(0, SeqCst) != 0, "write {number}");
        watched(world, functions, || probe.unregister().unwrap());
        assert!(world.text() == text);
        if !was_reached {
            assert!(number > 5, "only {number} writes");
            break;
        }
    }
}

/// A way back that has ended half-way leaves text that is still known: the probe is not taken for gone, a new
/// one joins it, and the instructions under the torn jump are read as they were.
#[test]
fn safe_3_a_jump_that_is_taken_away_half_way_is_still_known() {
    for number in 2.. {
        let world = World::new();
        let g = jumpable(world, "g");
        let text = world.text();
        let bare = world.run(g, &[1]);
        let first = world.probes.register(K::at(at(g, 0)).pre(|_| ())).unwrap();
        assert_eq!(world.probes.jumps().lay(), Ok(1));
        world.host().fails_for_good.store(true, SeqCst);
        world.host().failing_write.store(number, SeqCst);
        let taken = world.probes.jumps().lift();
        world.host().failing_write.store(0, SeqCst);
        if taken.is_ok() {
            assert!(number > 4, "only {number} writes");
            break;
        }
        let explained = world.probes.explain_all(&[at(g, 0), at(g, 1)]);
        assert!(explained.iter().all(Result::is_ok), "write {number}: {explained:?}");
        let second = world.probes.register(K::at(at(g, 0)).pre(|_| ())).unwrap();
        assert!(!first.is_gone(), "write {number}");
        assert_eq!(world.run(g, &[1]), bare, "write {number}");
        assert_eq!((first.counters().hits, second.counters().hits), (1, 1), "write {number}");
        drop((first, second));
        assert!(world.text() == text, "write {number}");
    }
}
