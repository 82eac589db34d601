//! REG_21: probes of every kind come to one place and go from it in any order, each in a registration of its
//! own, by trap and by jump. What stands in text, what runs and what the listing says are compared after each
//! step.

use super::optimise::{has_jump, list, plus_six};
use super::*;
use probe_core::handler::Flow;
use probe_core::{Jprobe, Probe};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// The kinds of probes that differ in what they need of a detour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kprobe,
    Return,
    ReturnWithEntry,
    Jprobe,
    Post,
    NoJump,
}

use Kind::*;

/// A function with an entry that a jump fits on, and a jprobe handler for it.
struct Target {
    world: &'static World,
    f: usize,
    handler: usize,
}

impl Target {
    fn new(is_optimising: bool) -> Self {
        let world = World::new();
        let f = plus_six(world, "f");
        let handler = world.function("handler", &[SET, 0, 9, 9, RETURN]);
        world.probes.jumps().set_automatic(is_optimising.into());
        Self { world, f, handler }
    }

    fn register(&self, kind: Kind) -> Probe<ToyHost> {
        let probes = &self.world.probes;
        let probe = match kind {
            Kprobe => probes.register(K::at("f").pre(|_| ())),
            Return => probes.register(R::at("f").max_active(8).exit(|_, ()| ())),
            ReturnWithEntry => {
                let probe = R::at("f").max_active(8).entry(|call| call.argument(0)).exit(|_, _| ());
                probes.register(probe)
            }
            // SAFETY: the handler takes what the function takes.
            Jprobe => probes.register(unsafe { Jprobe::<Toy>::from_raw("f", self.handler) }),
            Post => probes.register(K::at("f").pre(|_| ()).post(|_| ())),
            NoJump => probes.register(K::at("f").pre(|_| ()).without_jump()),
        };
        probe.unwrap()
    }

    /// Calls the function and compares: each probe sees the call, and text and listing say the same.
    fn check(&self, held: &[(Kind, Probe<ToyHost>)], told: &dyn Fn() -> String) {
        let hits = || held.iter().map(|(_, probe)| probe.counters().hits).collect::<Vec<_>>();
        let before = hits();
        // The second call takes the short ways of the context that came first.
        for _ in 0..2 {
            assert_eq!(self.world.value(self.f, &[1]), 7, "{}", told());
        }
        let expected: Vec<u64> = before.iter().map(|count| count + 2).collect();
        assert_eq!(hits(), expected, "{}", told());
        let listing = list(self.world);
        assert_eq!(listing.lines().count(), held.len(), "{}: {listing}", told());
        assert!(!listing.contains("[GONE]"), "{}: {listing}", told());
        let marked = listing.lines().filter(|line| line.ends_with("[OPTIMIZED]")).count();
        let expected = if has_jump(self.world, self.f) { held.len() } else { 0 };
        assert_eq!(marked, expected, "{}: {listing}", told());
    }
}

/// Every order of `items`.
fn orders<T: Copy>(items: &[T]) -> Vec<Vec<T>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |first: usize| {
        let rest: Vec<T> =
            (0..items.len()).filter(|index| *index != first).map(|index| items[index]).collect();
        orders(&rest).into_iter().map(move |mut order| {
            order.push(items[first]);
            order
        })
    };
    (0..items.len()).flat_map(with_first).collect()
}

#[test]
fn reg_21_a_return_probe_that_comes_to_a_jump_leaves_a_jump_that_serves_all() {
    let target = Target::new(true);
    let (world, before) = (target.world, target.world.text());
    let mut held = vec![(Kprobe, target.register(Kprobe))];
    for kind in [Return, Kprobe] {
        held.push((kind, target.register(kind)));
        assert!(has_jump(world, target.f), "all of these can have jumps");
        target.check(&held, &|| format!("{kind:?} has come"));
    }
    drop(held);
    assert!(world.text() == before, "the jump stays in text when its probes have gone");
    assert_eq!(world.value(target.f, &[1]), 7);
}

#[test]
fn reg_8_a_failed_registration_gives_back_the_jumps_that_it_has_taken_away() {
    let target = Target::new(false);
    let world = target.world;
    let held = vec![(Kprobe, target.register(Kprobe))];
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    // At the place itself, and under its jump; the other probe's text cannot be written.
    for place in [at(target.f, 0), at(target.f, 3)] {
        for number in 1.. {
            let before = world.text();
            let other = world.function("other", &[NOP, NOP, RETURN]);
            let before = [before, world.bytes(other, 16)].concat();
            world.host().failing_write.store(number, SeqCst);
            let batch = [K::at(place.clone()).pre(|_| ()).without_jump(), K::at(at(other, 0)).pre(|_| ())];
            let done = world.probes.register_all(batch);
            let was_reached = world.host().failing_write.swap(0, SeqCst) == 0;
            let has_failed = done.is_err();
            drop(done);
            if has_failed {
                assert!(world.text() == before, "write {number}: the jump has gone");
                target.check(&held, &|| format!("write {number}"));
            }
            world.probes.jumps().lay().unwrap();
            if !was_reached {
                assert!(!has_failed);
                break;
            }
        }
    }
}

#[test]
fn reg_21_probes_come_and_go_in_every_order() {
    let sets: &[&[Kind]] = &[
        &[Kprobe, Return, Jprobe],
        &[Kprobe, ReturnWithEntry, Post],
        &[Return, ReturnWithEntry, NoJump],
        &[Post, Return, Jprobe],
    ];
    for is_optimising in [false, true] {
        for (coming, going) in sets.iter().flat_map(|set| {
            orders(set).into_iter().flat_map(|a| orders(set).into_iter().map(move |b| (a.clone(), b)))
        }) {
            let target = Target::new(is_optimising);
            let before = target.world.text();
            let mut held = Vec::new();
            for kind in &coming {
                held.push((*kind, target.register(*kind)));
                target.check(&held, &|| format!("{kind:?} of {coming:?} has come ({is_optimising})"));
            }
            for kind in &going {
                let index = held.iter().position(|(other, _)| other == kind).unwrap();
                held.remove(index).1.unregister().unwrap();
                target.check(&held, &|| {
                    format!("{coming:?} came, {kind:?} of {going:?} has gone ({is_optimising})")
                });
            }
            assert!(
                target.world.text() == before,
                "{coming:?} came, {going:?} went: text is not what it was"
            );
            assert_eq!(target.world.value(target.f, &[1]), 7);
        }
    }
}

#[test]
fn reg_21_probes_come_and_go_separately_while_contexts_call() {
    const CONTEXTS: usize = 2;
    let orders = orders(&[Kprobe, Return, Jprobe]);
    for round in 0..super::threads::rounds(2 * orders.len() * orders.len()) {
        let (coming, going) = (&orders[round / 2 % orders.len()], &orders[round / 2 / orders.len()]);
        // A place that has had no detour: what it gets grows with what comes.
        let target = Target::new(round % 2 == 1);
        let before = target.world.text();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..CONTEXTS {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        assert_eq!(target.world.value(target.f, &[1]), 7);
                    }
                });
            }
            let ends = End(&is_over);
            for _ in 0..4 {
                let mut held: Vec<_> = coming.iter().map(|kind| (*kind, target.register(*kind))).collect();
                assert!(!list(target.world).contains("[GONE]"));
                for kind in going {
                    let index = held.iter().position(|(other, _)| other == kind).unwrap();
                    held.remove(index).1.unregister().unwrap();
                }
            }
            drop(ends);
        });
        assert!(target.world.text() == before);
    }
}

/// Tells the callers to end, also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Another thread removes a probe when the resolver has read its breakpoint and not yet looked for the probe:
/// it has to wait.
#[test]
fn safe_4_nothing_goes_while_a_place_is_resolved() {
    let world = World::new();
    let f = world.function("f", &[ENTRY, NOP, NOP, NOP, NOP, NOP, RETURN]);
    // SAFETY: an instruction starts there.
    let on_entry = unsafe { Place::unchecked(f.into()) };
    let resolves: [fn(&'static World) -> usize; 2] = [
        |world| world.probes.register(R::at("f")).unwrap().addr().as_usize(),
        |world| world.probes.explain(&Place::symbol("f")).unwrap().at.as_usize(),
    ];
    for resolve in resolves {
        let first = world.probes.register(K::at(on_entry.clone()).pre(|_| ())).unwrap();
        assert_eq!(world.bytes(f, 1), [BREAK]);
        let (has_read, has_gone) = (counter(), counter());
        let other = thread::spawn(move || {
            while has_read.load(Relaxed) == 0 {
                thread::yield_now();
            }
            drop(first);
            bump(has_gone);
        });
        *world.host().text_hook.lock().unwrap() = Some(Box::new(move |moment| {
            if moment == Moment::AfterRead && has_read.load(Relaxed) == 0 {
                let before = world.host().waits.load(SeqCst);
                bump(has_read);
                while has_gone.load(SeqCst) == 0 && world.host().waits.load(SeqCst) == before {
                    thread::yield_now();
                }
            }
        }));
        assert_eq!(resolve(world) - f, 1, "the instruction that a function begins with is not seen");
        other.join().unwrap();
        *world.host().text_hook.lock().unwrap() = None;
    }
}

/// What resolving a place reads (points, the table itself) is freed all the time meanwhile, and poisoned.
#[test]
fn safe_4_places_are_resolved_while_other_probes_come_and_go() {
    let target = Target::new(false);
    let probes = &target.world.probes;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for is_explained in [true, false] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    if is_explained {
                        let told = probes.explain(&Place::symbol("f")).unwrap();
                        assert_eq!((told.insn.first(), told.is_entry), (Some(&ADD), true));
                    } else {
                        drop(probes.register(R::at("f")).unwrap());
                    }
                }
            });
        }
        let ends = End(&is_over);
        for round in 0..super::threads::rounds(200) {
            drop(target.register(Kprobe));
            if round % 10 == 0 {
                let held = [Kprobe, Return].map(|kind| target.register(kind));
                let _ = probes.jumps().lay();
                drop(held);
            }
        }
        drop(ends);
    });
    assert_eq!(list(target.world), "");
}

/// What one of several handlers does with the registers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Looks,
    Changes,
    Moves,
    Redirects,
}

#[rstest::rstest]
fn hit_2_what_any_handler_of_a_jump_does_holds(
    #[values(Does::Looks, Does::Changes, Does::Moves, Does::Redirects)] older: Does,
    #[values(Does::Looks, Does::Changes, Does::Moves, Does::Redirects)] newer: Does,
) {
    let world = World::new();
    let f = plus_six(world, "f");
    let other = world.function("other", &[SET, 0, 7, 0, RETURN]);
    let doing = |does| {
        K::at("f").pre(move |hit: &mut Hit<'_, Toy>| {
            match does {
                Does::Looks => {}
                Does::Changes => hit.regs_mut().r[0] += 100,
                Does::Moves => {
                    let home = probe_core::arch::Memory::read_usize(&hit.memory(), hit.regs().sp).unwrap();
                    probe_core::arch::Memory::write_usize(&hit.memory(), hit.regs().sp - 32, home).unwrap();
                    hit.regs_mut().sp -= 32;
                }
                Does::Redirects => {
                    hit.regs_mut().pc = other;
                    return Flow::Redirected;
                }
            }
            Flow::Continue
        })
    };
    let probes = [older, newer].map(|does| world.probes.register(doing(does)).unwrap());
    assert_eq!(world.probes.jumps().lay(), Ok(1));
    let (_, bare) = world.run(plus_six(world, "g"), &[1]);
    let (end, regs) = world.run(f, &[1]);
    // The newer one is called first; a redirection leaves the older one out.
    let called = if newer == Does::Redirects { &[newer][..] } else { &[newer, older] };
    let times = |does| called.iter().filter(|called| **called == does).count();
    let value = if times(Does::Redirects) > 0 { 7 } else { 7 + 100 * times(Does::Changes) };
    assert_eq!((end, regs.r[0], regs.sp), (super::End::Returned, value, bare.sp - 32 * times(Does::Moves)));
    let hits = probes.map(|probe| probe.counters().hits as usize);
    assert_eq!(hits, [called.len() - 1, 1]);
}
