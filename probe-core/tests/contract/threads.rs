//! Many contexts at once: hits against registrations, on real threads (REG_13, HIT_7, HIT_8, SAFE_2).

use super::*;
use probe_core::Probe;
use probe_core::handler::Answer;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::thread;

/// How often a loop against other threads goes round, of so many times natively.
pub(super) fn rounds(natively: usize) -> usize {
    match natively {
        _ if cfg!(miri) => 3,
        _ if is_emulated() => natively / 10,
        _ => natively,
    }
}

/// How often the loops of these tests go round.
static ROUNDS: LazyLock<usize> = LazyLock::new(|| rounds(100));
const THREADS: usize = 4;

/// Runs `work` on several threads until `main` has ended; each thread calls it at least once.
fn meanwhile(work: impl Fn(usize) + Sync, main: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let begun = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (work, is_over, begun) = (&work, &is_over, &begun);
            scope.spawn(move || {
                work(number);
                begun.fetch_add(1, SeqCst);
                while !is_over.load(SeqCst) {
                    work(number);
                }
            });
        }
        while begun.load(SeqCst) < THREADS {
            thread::yield_now();
        }
        main();
        is_over.store(true, SeqCst);
    });
}

#[test]
fn hit_7_counters_stay_exact_with_many_contexts() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probes =
        PLUS_FIVE.map(|offset| world.probes.register(K::at(at(f, offset)).pre(|_| ()).post(|_| ())).unwrap());
    let ret = world
        .probes
        .register(R::at("f").max_active(THREADS as i32).entry(|_| Some(())).exit(|_, ()| ()))
        .unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..*ROUNDS).for_each(|_| assert_eq!(world.value(f, &[1]), 6)));
        }
    });
    let total = (THREADS * *ROUNDS) as u64;
    for probe in &probes {
        assert_eq!((probe.counters().hits, probe.counters().missed_nested), (total, 0));
    }
    let counters = ret.counters();
    assert_eq!((counters.hits, counters.missed_pool), (total, 0));
    assert!((1..=THREADS as u32).contains(&counters.pool_high_water));
}

#[test]
fn ret_2_a_contended_pool_loses_and_doubles_nothing() {
    let world = World::new();
    let f = plus_five(world, "f");
    let (entries, exits) = (counter(), counter());
    let probe = R::at("f")
        .max_active(2)
        .entry(|_| {
            bump(entries);
            thread::yield_now();
            Some(Box::new(7_usize))
        })
        .exit(|_, seven| {
            assert_eq!(*seven, 7);
            bump(exits);
        });
    let probe = world.probes.register(probe).unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..*ROUNDS).for_each(|_| assert_eq!(world.value(f, &[1]), 6)));
        }
    });
    let counters = probe.counters();
    assert_eq!(counters.hits + counters.missed_pool, (THREADS * *ROUNDS) as u64);
    assert_eq!((entries.load(SeqCst) as u64, exits.load(SeqCst) as u64), (counters.hits, counters.hits));
    assert!(counters.pool_high_water <= 2);
}

/// A handler's property, which is poisoned when the handler is freed.
struct Owned(&'static AtomicBool);

impl Owned {
    fn new() -> Self {
        Self(Box::leak(Box::new(AtomicBool::new(true))))
    }
    fn check(&self) {
        assert!(self.0.load(SeqCst), "a handler runs after it has been freed");
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

#[test]
fn reg_13_no_handler_runs_after_unregistering_has_returned() {
    let world = World::new();
    let f = plus_five(world, "f");
    meanwhile(
        |_| assert_eq!(world.value(f, &[1]), 6),
        || {
            for round in 0..*ROUNDS {
                let offset = PLUS_FIVE[round % PLUS_FIVE.len()];
                let [pre, post, entry, exit] = [(); 4].map(|()| Owned::new());
                let alive = [&pre, &post, &entry, &exit].map(|owned| owned.0);
                let kprobe = K::at(at(f, offset)).pre(move |_| pre.check()).post(move |_| post.check());
                let kprobe = world.probes.register(kprobe).unwrap();
                let ret = R::at("f")
                    .entry(move |_| {
                        entry.check();
                        Some(())
                    })
                    .exit(move |_, ()| exit.check());
                let ret = world.probes.register(ret).unwrap();
                thread::yield_now();
                if round % 2 == 0 {
                    world.probes.unregister_all([kprobe, ret]).unwrap();
                } else {
                    ret.unregister().unwrap();
                    kprobe.unregister().unwrap();
                }
                assert!(alive.iter().all(|alive| !alive.load(SeqCst)), "handlers are freed");
            }
        },
    );
    assert!(!world.text()[64..].contains(&BREAK));
}

/// Whatever the scheduler does: the handler goes on until somebody waits for it, or until it has been freed.
#[test]
fn reg_13_unregistering_waits_for_a_handler_that_is_running() {
    let world = World::new();
    let f = plus_five(world, "f");
    let (has_begun, was_waited_for) = (AtomicBool::new(false), AtomicBool::new(false));
    let [has_begun, was_waited_for] = [has_begun, was_waited_for].map(|flag| &*Box::leak(Box::new(flag)));
    let owned = Owned::new();
    let pre = move |_: &mut Hit<'_, Toy>| {
        // Copies: what the closure has captured goes with it.
        let (alive, was_waited_for, waits) = (owned.0, was_waited_for, &world.host().waits);
        let before = waits.load(SeqCst);
        has_begun.store(true, SeqCst);
        while alive.load(SeqCst) && waits.load(SeqCst) == before {
            thread::yield_now();
        }
        was_waited_for.store(alive.load(SeqCst), SeqCst);
    };
    let probe = world.probes.register(K::at("f").pre(pre)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(world.value(f, &[1]), 6));
        while !has_begun.load(SeqCst) {
            thread::yield_now();
        }
        probe.unregister().unwrap();
    });
    assert!(was_waited_for.load(SeqCst), "the handler was freed while it ran");
}

#[test]
fn hit_7_registrations_switches_and_listings_race_with_hits() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let permanent = world.probes.register(K::at("g").pre(|_| ()).post(|_| ())).unwrap();
    let runs = AtomicUsize::new(0);
    meanwhile(
        |_| {
            assert_eq!(world.value(f, &[1]), 6);
            assert_eq!(world.value(g, &[2]), 7);
            runs.fetch_add(1, SeqCst);
        },
        || {
            for round in 0..*ROUNDS {
                let batch = PLUS_FIVE.map(|offset| K::at(at(f, offset)).pre(|_| ()).post(|_| ()));
                let mut batch: Vec<Probe<ToyHost>> = world.probes.register_all(batch).unwrap();
                batch[round % 7].disable().unwrap();
                let plain = world.probes.register(K::at(at(f, 0)).pre(|_| ())).unwrap();
                let mut out = String::new();
                world.probes.files().list(&mut out, probe_core::files::Viewer::Privileged).unwrap();
                assert_eq!(out.lines().count(), 9, "{out}");
                drop(batch.drain(..3));
                world.probes.unregister_all(batch).unwrap();
                drop(plain);
            }
        },
    );
    let counters = permanent.counters();
    assert_eq!((counters.hits, counters.missed_nested), (runs.load(SeqCst) as u64, 0));
}

#[test]
fn ctl_2_the_switch_races_with_hits() {
    let world = World::new();
    let f = plus_five(world, "f");
    let probes =
        PLUS_FIVE.map(|offset| world.probes.register(K::at(at(f, offset)).pre(|_| ()).post(|_| ())).unwrap());
    let _ret = world.probes.register(R::at("f").exit(|_, ()| ())).unwrap();
    meanwhile(
        |_| assert_eq!(world.value(f, &[1]), 6),
        || {
            for _ in 0..*ROUNDS {
                world.probes.switch(probe_core::Switch::Off).unwrap();
                world.probes.switch(probe_core::Switch::On).unwrap();
            }
        },
    );
    assert_eq!(world.value(f, &[1]), 6);
    assert!(probes.iter().all(|probe| probe.counters().missed_nested == 0));
}

#[test]
fn reg_12_failing_batches_race_with_hits() {
    let world = World::new();
    let f = plus_five(world, "f");
    world.function("bad", &[FORBIDDEN]);
    meanwhile(
        |_| assert_eq!(world.value(f, &[1]), 6),
        || {
            for round in 0..*ROUNDS {
                let owned = [(); 8].map(|()| Owned::new());
                let alive: Vec<_> = owned.iter().map(|owned| owned.0).collect();
                let places = PLUS_FIVE.map(|offset| at(f, offset)).into_iter().chain(["bad".into()]);
                let places = places.filter(|place| round % 2 == 0 || *place != "bad".into());
                let batch = places.zip(owned).map(|(place, owned)| K::at(place).pre(move |_| owned.check()));
                let batch: Vec<_> = batch.collect();
                if round % 2 == 1 {
                    // Some write of the second half: breakpoints.
                    world.host().failing_write.store(10 + round % 8, SeqCst);
                }
                let result = world.probes.register_all(batch);
                world.host().failing_write.store(0, SeqCst);
                assert!(result.is_err() || round % 2 == 1);
                drop(result);
                assert!(alive.iter().all(|alive| !alive.load(SeqCst)));
            }
        },
    );
    assert!(!world.text()[64..].contains(&BREAK));
}

#[test]
fn hit_9_faults_race_with_registrations() {
    let world = World::new();
    let f = world.function("f", &[LOAD, 1, 0, ADD, 0, 1, RETURN]);
    let (good, bad) = (world.arena() + DATA, 8);
    meanwhile(
        |_| {
            assert_eq!(world.value(f, &[good]), good + 1);
            assert!(matches!(world.run(f, &[bad]).0, End::Faulted(_)));
            // The faulting call leaves the others' stacks alone; its own return is never made.
            world.probes.events().task_exit(world.host().current().1);
        },
        || {
            for round in 0..*ROUNDS {
                let probe = K::at("f").fault(|_, _| Answer::NotHandled);
                let probe = if round % 2 == 0 { probe.post(|_| ()) } else { probe };
                let probe = world.probes.register(probe).unwrap();
                let ret = world.probes.register(R::at("f")).unwrap();
                thread::yield_now();
                drop((probe, ret));
            }
        },
    );
    assert_eq!(world.value(f, &[good]), good + 1);
}

#[test]
fn reg_18_handlers_disable_and_enable_while_others_hit() {
    let world = World::new();
    let f = plus_five(world, "f");
    let g = plus_five(world, "g");
    let probe: &'static _ = world.probes.register(K::at("f").pre(|_| ())).unwrap().leak();
    let toggle = counter();
    let toggler = K::at("g").pre(move |_| match toggle.fetch_add(1, SeqCst) % 2 {
        0 => probe.disable().unwrap(),
        _ => probe.enable().unwrap(),
    });
    let _toggler = world.probes.register(toggler).unwrap();
    meanwhile(
        |_| {
            assert_eq!(world.value(f, &[1]), 6);
            assert_eq!(world.value(g, &[1]), 6);
        },
        || (0..*ROUNDS).for_each(|_| world.probes.settle()),
    );
    probe.enable().unwrap();
    let before = probe.counters().hits;
    assert_eq!(world.value(f, &[1]), 6);
    assert_eq!(probe.counters().hits, before + 1);
}
