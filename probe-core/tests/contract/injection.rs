//! Fault injection: over each operation of the registry, the n-th allocation fails, or the n-th write of
//! text, or the n-th chunk of executable memory, once or from then on, for all n. Whatever the operation
//! answers: the program runs as before, the probes that are there count each call, an operation that failed
//! has changed nothing, and in the end everything can be removed and nothing is left.

use super::*;
use probe_core::error::{BatchError, Errno, RemoveError};
use probe_core::files::Viewer;
use probe_core::{AnyProbe, Jprobe, Kept, Probe, Switch};
use std::cell::Cell;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Allocation,
    /// That allocation and all after it.
    Allocations,
    Write,
    Writes,
    Chunk,
}

const FAULTS: [Fault; 5] = [Fault::Allocation, Fault::Allocations, Fault::Write, Fault::Writes, Fault::Chunk];

/// A program with probes of every kind.
struct Scene {
    world: &'static World,
    f: usize,
    g: usize,
    probes: Vec<Probe<ToyHost>>,
    /// Before there was any probe: the text, the bytes that this thread holds.
    pristine: Vec<u8>,
    live: isize,
}

/// What jumps over it may displace: r0 + 5.
fn jumpable(world: &World, name: &str) -> usize {
    world.function(name, &[NOP, ADD, 0, 2, NOP, ADD, 0, 3, RETURN])
}

impl Scene {
    /// Without probes.
    fn empty() -> Self {
        let world = World::new();
        let (f, g) = (plus_five(world, "f"), jumpable(world, "g"));
        world.function("handler", &[RETURN]);
        // What the host itself allocates is not to fail.
        let _ = world.host().current();
        world.host().notices.lock().unwrap().reserve(10_000);
        DETOURS.lock().unwrap().reserve(100);
        let probes = Vec::with_capacity(100);
        let pristine = world.text();
        // Spoken once, so that what the host keeps for calls is there.
        let scene = Self { world, f, g, probes, pristine, live: 0 };
        scene.check(&String::new);
        Self { live: alloc_count::live(), ..scene }
    }

    /// With a batch of probes, some disabled.
    fn full() -> Self {
        let mut scene = Self::empty();
        scene.probes.extend(scene.world.probes.register_all(scene.batch()).unwrap());
        scene
    }

    /// On f with breakpoints, on g where a jump may be: what needs slots, stubs, pools.
    fn batch(&self) -> Vec<AnyProbe<Toy>> {
        let mut batch: Vec<AnyProbe<Toy>> = Vec::new();
        for offset in PLUS_FIVE {
            batch.push(K::at(Place::symbol("f").offset(offset)).pre(|_| ()).post(|_| ()).into());
        }
        batch.push(R::at("f").entry(|_| Some(Box::new(1))).exit(|_, _| ()).into());
        // SAFETY: the handler takes no arguments.
        batch.push(unsafe { Jprobe::from_raw("f", self.handler()) }.into());
        batch.push(K::at("g").pre(|_| ()).into());
        batch.push(R::at("g").entry(|_| Some(Box::new(2))).exit(|_, _| ()).into());
        batch.push(K::at("g").pre(|_| ()).disabled().into());
        batch
    }

    fn handler(&self) -> usize {
        let symbols = self.world.host().symbols.lock().unwrap();
        symbols.iter().find(|symbol| symbol.name == "handler").unwrap().start
    }

    fn listing(&self) -> String {
        let mut out = String::new();
        self.world.probes.files().list(&mut out, Viewer::Privileged).unwrap();
        out
    }

    /// The program is as without probes.
    fn run(&self, what: &dyn Fn() -> String) {
        assert_eq!(self.world.value(self.f, &[1]), 6, "{}", what());
        assert_eq!(self.world.value(self.g, &[1]), 6, "{}", what());
    }

    /// As `run`, and each probe that is on has counted the call.
    fn check(&self, what: &dyn Fn() -> String) {
        let before: Vec<_> = self.probes.iter().map(|probe| probe.counters().hits).collect();
        self.run(what);
        for (probe, before) in self.probes.iter().zip(before) {
            let counters = probe.counters();
            let more = u64::from(probe.is_enabled() && self.world.probes.is_on());
            assert_eq!(counters.hits, before + more, "{}: {probe:?}", what());
            let missed = (counters.missed_nested, counters.missed_pool, counters.abandoned);
            assert_eq!(missed, (0, 0, 0), "{}", what());
        }
    }

    /// Everything can be removed; what is left in memory then: bytes, chunks.
    fn end(mut self, what: &dyn Fn() -> String) -> (isize, isize) {
        let probes = &self.world.probes;
        probes.switch(Switch::On).unwrap();
        self.check(what);
        assert!(probes.unregister_all(self.probes.drain(..)).is_ok(), "{}", what());
        probes.settle();
        assert!(self.world.text() == self.pristine, "{}: text", what());
        assert_eq!(self.listing(), "", "{}", what());
        self.check(what);
        (alloc_count::live() - self.live, self.world.host().live_chunks.load(SeqCst))
    }
}

/// What an operation answers; looked at when nothing fails any more.
enum Outcome {
    /// Whether it has succeeded.
    Done(bool),
    Registered(Result<Vec<Probe<ToyHost>>, BatchError>),
    Removed(Result<(), Vec<Kept<ToyHost>>>),
}

impl Outcome {
    /// Puts the probes that there are now into the scene; whether it has succeeded.
    fn settle(self, scene: &mut Scene) -> bool {
        match self {
            Self::Done(is_done) => is_done,
            Self::Registered(Ok(probes)) => {
                scene.probes.extend(probes);
                true
            }
            Self::Registered(Err(error)) => {
                assert!([Errno::ENOMEM, Errno::EFAULT].contains(&error.error.errno()), "{error}");
                false
            }
            Self::Removed(Ok(())) => true,
            Self::Removed(Err(kept)) => {
                for kept in kept {
                    assert!(matches!(kept.error, RemoveError::Text(_)), "{kept}");
                    scene.probes.push(kept.probe);
                }
                false
            }
        }
    }
}

/// Lets `fault` happen in `operation` at its occurrence number `number`; whether it has.
fn with_fault<T>(world: &World, fault: Fault, number: usize, operation: impl FnOnce() -> T) -> (T, bool) {
    let host = world.host();
    let chunks = host.chunks_left.load(SeqCst);
    match fault {
        Fault::Allocation => alloc_count::fail_allocation(number),
        Fault::Allocations => alloc_count::fail_allocations_from(number),
        Fault::Write | Fault::Writes => {
            host.fails_for_good.store(fault == Fault::Writes, SeqCst);
            host.failing_write.store(number, SeqCst);
        }
        Fault::Chunk => host.chunks_left.store(number - 1, SeqCst),
    }
    let result = operation();
    let has_failed_allocation = alloc_count::stop_failing();
    let failing_write = host.failing_write.swap(0, SeqCst);
    let left = host.chunks_left.swap(chunks, SeqCst);
    let has_happened = match fault {
        Fault::Allocation | Fault::Allocations => has_failed_allocation,
        Fault::Write => failing_write == 0,
        Fault::Writes => failing_write == 1,
        // Whether more was asked for is not known; nothing here needs four.
        Fault::Chunk => left < number && number < 4,
    };
    (result, has_happened)
}

/// Whether an operation that fails has changed nothing, or has done what it could.
#[derive(Clone, Copy, PartialEq)]
enum Failure {
    ChangesNothing,
    DoesTheRest,
}

/// Runs `operation` on scenes with every fault at every number.
fn inject(scene: fn() -> Scene, failure: Failure, operation: fn(&mut Scene) -> Outcome) {
    for fault in FAULTS {
        // What each number has left in memory in the end, the last one without a fault.
        let mut left = Vec::new();
        for number in 1..500 {
            let what = || format!("{fault:?} {number}");
            println!("{}", what());
            let mut scene = scene();
            let world = scene.world;
            scene.check(&what);
            let (text, listing) = (world.text(), scene.listing());
            let chunks = world.host().live_chunks.load(SeqCst);
            let (outcome, has_happened) = with_fault(world, fault, number, || operation(&mut scene));
            let is_done = outcome.settle(&mut scene);
            assert!(is_done || has_happened, "{} fails by itself", what());
            if !is_done && failure == Failure::ChangesNothing {
                // Where no write works any more, none can be undone.
                assert!(fault == Fault::Writes || world.text() == text, "{}: text", what());
                assert_eq!(scene.listing(), listing, "{}", what());
                // Without any memory, or any way to undo what is written, a later call gives chunks back.
                let is_later = matches!(fault, Fault::Allocations | Fault::Writes);
                let now = world.host().live_chunks.load(SeqCst);
                assert!(is_later || now == chunks, "{}: {now} chunks, not {chunks}", what());
            }
            scene.run(&what);
            if !is_done {
                // What has not been done can be done now, and what has been done stays.
                world.probes.switch(Switch::On).unwrap();
            }
            scene.check(&what);
            left.push(scene.end(&what));
            if !has_happened {
                break;
            }
        }
        let bare = *left.last().unwrap();
        for (index, left) in left.iter().enumerate() {
            // A detour more, kept for good, or points that a context may be in unseen. A pool costs more;
            // that nothing adds up is `faults_again_and_again_cost_nothing_more`.
            assert!(left.0 <= bare.0 + 2048, "{fault:?} {}: {} bytes, not {}", index + 1, left.0, bare.0);
            // A chunk of slots may stay for such points.
            assert!(left.1 <= bare.1 + 1, "{fault:?} {}: {} chunks, not {}", index + 1, left.1, bare.1);
        }
    }
}

thread_local! {
    /// A batch that was made before anything fails: the boxes of its handlers are their maker's.
    static BATCH: Cell<Vec<AnyProbe<Toy>>> = const { Cell::new(Vec::new()) };
}

#[test]
fn reg_8_registering_a_batch() {
    let scene = || {
        let scene = Scene::empty();
        BATCH.set(scene.batch());
        scene
    };
    let register = |scene: &mut Scene| Outcome::Registered(scene.world.probes.register_all(BATCH.take()));
    inject(scene, Failure::ChangesNothing, register);
}

#[test]
fn reg_8_registering_a_batch_where_probes_and_jumps_are() {
    let scene = || {
        let scene = Scene::full();
        assert_eq!(scene.world.probes.jumps().lay(), Ok(1));
        let mut batch = scene.batch();
        // There is one already.
        let _jprobe = batch.remove(PLUS_FIVE.len() + 1);
        // Under the jump.
        batch.push(K::at(Place::symbol("g").offset(1)).pre(|_| ()).into());
        BATCH.set(batch);
        scene
    };
    let register = |scene: &mut Scene| Outcome::Registered(scene.world.probes.register_all(BATCH.take()));
    // A jump that has gone need not come back.
    inject(scene, Failure::DoesTheRest, register);
}

#[test]
fn reg_14_unregistering_a_batch() {
    let unregister =
        |scene: &mut Scene| Outcome::Removed(scene.world.probes.unregister_all(scene.probes.drain(..)));
    inject(Scene::full, Failure::DoesTheRest, unregister);
}

#[test]
fn reg_14_unregistering_a_batch_with_jumps() {
    let scene = || {
        let scene = Scene::full();
        assert_eq!(scene.world.probes.jumps().lay(), Ok(1));
        scene
    };
    let unregister =
        |scene: &mut Scene| Outcome::Removed(scene.world.probes.unregister_all(scene.probes.drain(..)));
    inject(scene, Failure::DoesTheRest, unregister);
}

#[test]
fn reg_16_dropping_handles() {
    let drop_all = |scene: &mut Scene| {
        scene.probes.clear();
        Outcome::Done(true)
    };
    inject(Scene::full, Failure::DoesTheRest, drop_all);
}

#[test]
fn ctl_1_disabling_and_enabling() {
    let disable = |scene: &mut Scene| {
        let mut all = Ok(());
        scene.probes.iter().for_each(|probe| all = all.and(probe.disable()));
        Outcome::Done(all.is_ok())
    };
    inject(Scene::full, Failure::DoesTheRest, disable);
    let disabled = || {
        let scene = Scene::full();
        scene.probes.iter().for_each(|probe| probe.disable().unwrap());
        scene
    };
    let enable = |scene: &mut Scene| {
        let mut all = Ok(());
        scene.probes.iter().for_each(|probe| all = all.and(probe.enable()));
        Outcome::Done(all.is_ok())
    };
    inject(disabled, Failure::DoesTheRest, enable);
    let enable_one = |scene: &mut Scene| Outcome::Done(scene.probes[3].enable().is_ok());
    inject(disabled, Failure::ChangesNothing, enable_one);
}

#[test]
fn ctl_2_the_switch() {
    let off_and_on = |scene: &mut Scene| {
        let off = scene.world.probes.switch(Switch::Off);
        Outcome::Done(off.and(scene.world.probes.switch(Switch::On)).is_ok())
    };
    inject(Scene::full, Failure::DoesTheRest, off_and_on);
}

#[test]
fn jumps_that_come_and_go() {
    let optimise = |scene: &mut Scene| Outcome::Done(scene.world.probes.jumps().lay().is_ok());
    inject(Scene::full, Failure::DoesTheRest, optimise);
    let optimised = || {
        let scene = Scene::full();
        assert_eq!(scene.world.probes.jumps().lay(), Ok(1));
        scene
    };
    let unoptimise = |scene: &mut Scene| Outcome::Done(scene.world.probes.jumps().lift().is_ok());
    inject(optimised, Failure::DoesTheRest, unoptimise);
}

#[test]
fn reg_18_what_handlers_have_asked_for() {
    let asked = || {
        let mut scene = Scene::full();
        let world = scene.world;
        let orphan = Mutex::new(scene.probes.pop());
        let once = K::at("f").pre(move |hit: &mut Hit<'_, Toy>| {
            hit.disable();
            drop(orphan.lock().unwrap().take());
        });
        let once = world.probes.register(once).unwrap();
        assert_eq!(world.value(scene.f, &[1]), 6);
        scene.probes.push(once);
        scene
    };
    let settle = |scene: &mut Scene| {
        scene.world.probes.settle();
        Outcome::Done(true)
    };
    inject(asked, Failure::DoesTheRest, settle);
}

#[test]
fn ctl_5_text_that_goes() {
    let go = |scene: &mut Scene| {
        let pristine = [NOP, ADD, 0, 2, NOP, ADD, 0, 3, RETURN];
        scene.world.probes.events().text_going(scene.g.into(), (scene.g + pristine.len()).into());
        // Loaded afresh.
        scene.world.put(scene.g, &pristine);
        Outcome::Done(true)
    };
    inject(Scene::full, Failure::DoesTheRest, go);
    let optimised = || {
        let scene = Scene::full();
        assert_eq!(scene.world.probes.jumps().lay(), Ok(1));
        scene
    };
    inject(optimised, Failure::DoesTheRest, go);
}

#[test]
fn faults_again_and_again_cost_nothing_more() {
    let mut scene = Scene::empty();
    let world = scene.world;
    let mut most = |rounds: std::ops::Range<usize>| {
        let held = rounds.map(|round| {
            let fault = FAULTS[round % FAULTS.len()];
            let batch = scene.batch();
            let number = 1 + round % 61;
            let (registered, _) = with_fault(world, fault, number, || world.probes.register_all(batch));
            scene.probes.extend(registered.unwrap_or_default());
            let (_, _) = with_fault(world, fault, number / 2 + 1, || world.probes.jumps().lay());
            scene.run(&|| format!("round {round}"));
            let (removed, _) =
                with_fault(world, fault, number, || world.probes.unregister_all(scene.probes.drain(..)));
            drop(removed);
            world.probes.switch(Switch::On).unwrap();
            world.probes.settle();
            assert_eq!(scene.listing(), "");
            (alloc_count::live(), world.host().live_chunks.load(SeqCst))
        });
        held.max().unwrap()
    };
    let few = if is_emulated() { 100 } else { 400 };
    let settled = most(0..few);
    let later = most(few..3 * few);
    // The list of stops and notices is the host's.
    assert!(later <= settled, "{settled:?} {later:?}");
}

#[test]
fn reg_8_a_detour_that_cannot_be_written_takes_no_other_chunk() {
    let mut has_failed = false;
    for number in 1..20 {
        let mut scene = Scene::full();
        let world = scene.world;
        assert_eq!(world.probes.jumps().lay(), Ok(1), "the first chunk of detours");
        let other = world.function("other", &[NOP, ADD, 0, 1, NOP, ADD, 0, 1, RETURN]);
        scene.probes.push(world.probes.register(K::at("other").pre(|_| ())).unwrap());
        let chunks = world.host().live_chunks.load(SeqCst);
        let (_, has_happened) = with_fault(world, Fault::Write, number, || world.probes.jumps().lay());
        has_failed |= has_happened;
        assert_eq!(world.host().live_chunks.load(SeqCst), chunks, "write {number}");
        assert_eq!(world.value(other, &[1]), 3, "write {number}");
        if !has_happened {
            break;
        }
    }
    assert!(has_failed);
}
