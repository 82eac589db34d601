//! The registry against a plain model: random sequences of operations are done on both, and after each one
//! all that can be seen is compared: results, handlers in their order, counters, text, the listing.
//!
//! `PROPTEST_CASES=100000 cargo test --release -p probe-core --test contract model` is the long form. What
//! has failed once is kept in `model.seeds` and tried first.

use super::*;
use probe_core::error::Errno;
use probe_core::files::Viewer;
use probe_core::{AnyProbe, Jprobe, Probe, Switch};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

/// How many functions there are; the last one is a module's.
const FUNCTIONS: usize = 6;
/// The code of all of them: each instruction runs once in a call, and r0 is 6 at the end.
const CODE: [u8; 20] =
    [NOP, ADD, 0, 2, NOP, ADD, 0, 3, BORROW, 0, ADDRESS, 1, 0, SUB, 0, 2, BRANCH, 5, 1, FORBIDDEN];
/// The offsets of those of its instructions that can be probed, and of the one behind the last.
const STARTS: [usize; 9] = [0, 1, 4, 5, 8, 10, 13, 16, 20];
/// The offset of what cannot be probed.
const REFUSED: usize = 19;

/// One probe that is to be registered.
#[derive(Clone, Debug)]
struct Wanted {
    function: usize,
    offset: usize,
    kind: Kind,
    is_disabled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kprobe {
        has_post: bool,
    },
    /// Whether its entry handler declines.
    Kretprobe {
        declines: bool,
    },
    Jprobe,
}

#[derive(Clone, Debug)]
enum Operation {
    Register(Vec<Wanted>),
    /// As `Register`, while a write of text fails.
    RegisterFailing(Vec<Wanted>, usize),
    /// The numbers count round among the probes there are.
    Unregister(Vec<usize>),
    Enable(usize),
    Disable(usize),
    Switch(bool),
    Call(usize),
    Optimise,
    Unoptimise,
    /// The module is unloaded and loaded again.
    Reload,
    Settle,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let kind = prop_oneof![
        4 => any::<bool>().prop_map(|has_post| Kind::Kprobe { has_post }),
        2 => any::<bool>().prop_map(|declines| Kind::Kretprobe { declines }),
        1 => Just(Kind::Jprobe),
    ];
    // Mostly where it can be; entries more often, for what belongs there.
    let offset = prop_oneof![
        3 => Just(0),
        8 => prop::sample::select(&STARTS[..]),
        1 => 0..CODE.len() + 2,
    ];
    (0..FUNCTIONS, offset, kind, prop::bool::weighted(0.2)).prop_map(
        |(function, offset, kind, is_disabled)| {
            let is_kprobe = matches!(kind, Kind::Kprobe { .. });
            let offset = if is_kprobe || offset % 3 == 2 { offset } else { 0 };
            Wanted { function, offset, kind, is_disabled }
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let batch = || prop::collection::vec(wanted(), 1..6);
    prop_oneof![
        4 => wanted().prop_map(|wanted| Operation::Register(vec![wanted])),
        3 => batch().prop_map(Operation::Register),
        2 => (batch(), 1..20_usize).prop_map(|(batch, number)| Operation::RegisterFailing(batch, number)),
        4 => prop::collection::vec(any::<usize>(), 1..6).prop_map(Operation::Unregister),
        2 => any::<usize>().prop_map(Operation::Enable),
        2 => any::<usize>().prop_map(Operation::Disable),
        1 => any::<bool>().prop_map(Operation::Switch),
        8 => (0..FUNCTIONS).prop_map(Operation::Call),
        1 => Just(Operation::Optimise),
        1 => Just(Operation::Unoptimise),
        1 => Just(Operation::Reload),
        1 => Just(Operation::Settle),
    ]
}

/// One probe in the model.
struct Modelled {
    /// What its handlers call themselves.
    number: usize,
    wanted: Wanted,
    is_enabled: bool,
    is_gone: bool,
    /// Hits, vetoed.
    counts: (u64, u64),
}

/// Both sides.
struct Pair {
    world: &'static World,
    functions: [usize; FUNCTIONS],
    handler: usize,
    log: &'static Log,
    pristine: Vec<u8>,
    /// Oldest first, with their handles.
    probes: Vec<(Modelled, Probe<ToyHost>)>,
    is_on: bool,
    /// There may be jumps in text.
    may_jump: bool,
    next_number: usize,
}

impl Pair {
    fn new() -> Self {
        let world = World::new();
        let code = [&CODE[..], &[RETURN]].concat();
        let functions = std::array::from_fn(|index| {
            let module = (index == FUNCTIONS - 1).then_some("module");
            world.function_in(&format!("f{index}"), module, &code)
        });
        let handler = world.function("handler", &[SET, 0, 0, 0, RETURN]);
        Self {
            world,
            functions,
            handler,
            log: Log::new(),
            pristine: world.text(),
            probes: Vec::new(),
            is_on: true,
            may_jump: false,
            next_number: 0,
        }
    }

    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Register(batch) => self.register(batch, 0),
            Operation::RegisterFailing(batch, number) => self.register(batch, *number),
            Operation::Unregister(which) => self.unregister(which),
            Operation::Enable(which) => self.set_enabled(*which, true),
            Operation::Disable(which) => self.set_enabled(*which, false),
            Operation::Switch(is_on) => {
                self.world.probes.switch(if *is_on { Switch::On } else { Switch::Off }).unwrap();
                self.is_on = *is_on;
            }
            Operation::Call(function) => self.call(*function),
            Operation::Optimise => {
                self.world.probes.jumps().lay().unwrap();
                self.may_jump = true;
            }
            Operation::Unoptimise => {
                self.world.probes.jumps().lift().unwrap();
                self.may_jump = false;
            }
            Operation::Reload => self.reload(),
            Operation::Settle => self.world.probes.settle(),
        }
        self.compare();
    }

    // ---- registering --------------------------------------------------------------------------------------

    fn real(&self, wanted: &Wanted, number: usize) -> AnyProbe<Toy> {
        let log = self.log;
        let place = Place::symbol(&format!("f{}", wanted.function)).offset(wanted.offset as isize);
        match wanted.kind {
            Kind::Kprobe { has_post } => {
                let mut probe = K::at(place).pre(move |_| log.add(format!("pre {number}")));
                if has_post {
                    probe = probe.post(move |_| log.add(format!("post {number}")));
                }
                if wanted.is_disabled { probe.disabled().into() } else { probe.into() }
            }
            Kind::Kretprobe { declines } => {
                let probe = R::at(place)
                    .entry(move |_| {
                        log.add(format!("entry {number}"));
                        (!declines).then_some(number)
                    })
                    .exit(move |ret, kept| {
                        assert_eq!((kept, ret.value()), (number, 6));
                        log.add(format!("exit {number}"));
                    });
                if wanted.is_disabled { probe.disabled().into() } else { probe.into() }
            }
            Kind::Jprobe => {
                // SAFETY: the handler takes no arguments.
                let probe = unsafe { Jprobe::from_raw(place, self.handler) };
                if wanted.is_disabled { probe.disabled().into() } else { probe.into() }
            }
        }
    }

    /// What the model says to a batch: where it fails, and with which errno.
    fn verdict(&self, batch: &[Wanted]) -> Result<(), (usize, Errno)> {
        // Places are looked up first, then prepared.
        let look_up = |wanted: &Wanted| match wanted.offset {
            offset if offset > CODE.len() => Some(Errno::EINVAL),
            0 => None,
            _ if !matches!(wanted.kind, Kind::Kprobe { .. }) => Some(Errno::EINVAL),
            _ => None,
        };
        if let Some(failed) = batch.iter().enumerate().find_map(|(index, w)| Some((index, look_up(w)?))) {
            return Err(failed);
        }
        let mut jprobes: Vec<_> = self.probes.iter().map(|(modelled, _)| modelled).collect::<Vec<_>>();
        jprobes.retain(|modelled| modelled.wanted.kind == Kind::Jprobe && !modelled.is_gone);
        let mut taken: Vec<_> = jprobes.iter().map(|modelled| modelled.wanted.function).collect();
        for (index, wanted) in batch.iter().enumerate() {
            let errno = match wanted.offset {
                REFUSED => Errno::EOPNOTSUPP,
                offset if !STARTS.contains(&offset) => Errno::EILSEQ,
                _ if wanted.kind == Kind::Jprobe && taken.contains(&wanted.function) => Errno::EEXIST,
                _ => {
                    if wanted.kind == Kind::Jprobe {
                        taken.push(wanted.function);
                    }
                    continue;
                }
            };
            return Err((index, errno));
        }
        Ok(())
    }

    /// Registers a batch; the write of text with this number fails, if it is not 0 and there are so many.
    fn register(&mut self, batch: &[Wanted], failing: usize) {
        let numbers: Vec<_> = (self.next_number..).take(batch.len()).collect();
        self.next_number += batch.len();
        let real: Vec<_> =
            batch.iter().zip(&numbers).map(|(wanted, number)| self.real(wanted, *number)).collect();
        self.world.host().failing_write.store(failing, SeqCst);
        let result = self.world.probes.register_all(real);
        let has_failed = failing != 0 && self.world.host().failing_write.swap(0, SeqCst) == 0;
        let handles = match (self.verdict(batch), result) {
            (Ok(()), Ok(handles)) => handles,
            // Where nothing else is wrong, only the write can be.
            (_, Err(error)) if has_failed && error.error.errno() == Errno::EFAULT => return,
            (Err(expected), Err(error)) => {
                assert_eq!((error.index, error.error.errno()), expected, "{error}");
                return;
            }
            (expected, got) => panic!("expected {expected:?}, got {got:?}"),
        };
        for ((wanted, number), handle) in batch.iter().zip(numbers).zip(handles) {
            let modelled = Modelled {
                number,
                is_enabled: !wanted.is_disabled,
                is_gone: false,
                counts: (0, 0),
                wanted: wanted.clone(),
            };
            self.probes.push((modelled, handle));
        }
    }

    // ---- everything else ----------------------------------------------------------------------------------

    fn unregister(&mut self, which: &[usize]) {
        let mut leaving = Vec::new();
        for number in which {
            if !self.probes.is_empty() {
                leaving.push(self.probes.remove(number % self.probes.len()).1);
            }
        }
        self.world.probes.unregister_all(leaving).unwrap();
    }

    fn set_enabled(&mut self, which: usize, is_enabled: bool) {
        let count = self.probes.len();
        if count == 0 {
            return;
        }
        let (modelled, probe) = &mut self.probes[which % count];
        if is_enabled {
            assert_eq!(probe.enable().is_ok(), !modelled.is_gone);
            modelled.is_enabled |= !modelled.is_gone;
        } else {
            probe.disable().unwrap();
            modelled.is_enabled = false;
        }
    }

    fn reload(&mut self) {
        let start = self.functions[FUNCTIONS - 1];
        let end = start + CODE.len() + 1;
        self.world.probes.events().text_going(start.into(), end.into());
        let offset = start - self.world.arena();
        self.world.put(start, &self.pristine[offset..offset + CODE.len() + 1]);
        for (modelled, _) in &mut self.probes {
            modelled.is_gone |= modelled.wanted.function == FUNCTIONS - 1;
        }
    }

    fn call(&mut self, function: usize) {
        let mut expected = Vec::new();
        let mut returns = Vec::new();
        let is_on = self.is_on;
        for start in STARTS {
            let here = |modelled: &Modelled| {
                let wanted = &modelled.wanted;
                is_on
                    && modelled.is_enabled
                    && !modelled.is_gone
                    && (wanted.function, wanted.offset) == (function, start)
            };
            let mut posts = Vec::new();
            // Newest first.
            for (modelled, _) in self.probes.iter_mut().rev() {
                if !here(modelled) {
                    continue;
                }
                let number = modelled.number;
                match modelled.wanted.kind {
                    Kind::Kprobe { has_post } => {
                        expected.push(format!("pre {number}"));
                        if has_post {
                            posts.push(format!("post {number}"));
                        }
                    }
                    Kind::Kretprobe { declines } => {
                        expected.push(format!("entry {number}"));
                        if declines {
                            modelled.counts.1 += 1;
                            continue;
                        }
                        returns.push(format!("exit {number}"));
                    }
                    Kind::Jprobe => {}
                }
                modelled.counts.0 += 1;
            }
            expected.extend(posts);
        }
        // What was entered last is left first.
        expected.extend(returns.into_iter().rev());
        let (end, regs) = self.world.run(self.functions[function], &[2]);
        assert_eq!((end, regs.r[0]), (End::Returned, 6));
        assert_eq!(self.log.take(), expected);
    }

    // ---- what can be seen ---------------------------------------------------------------------------------

    fn compare(&self) {
        for (modelled, probe) in &self.probes {
            let counters = probe.counters();
            let missed = counters.missed_nested + counters.missed_pool;
            let seen = (counters.hits, counters.vetoed, missed, counters.abandoned, counters.faults);
            let (hits, vetoed) = modelled.counts;
            assert_eq!(seen, (hits, vetoed, 0, 0, 0), "probe {}", modelled.number);
            assert_eq!(probe.is_gone(), modelled.is_gone);
            assert_eq!(probe.is_enabled(), modelled.is_enabled && !modelled.is_gone);
        }
        self.compare_listing();
        if !self.may_jump {
            assert!(self.world.text() == self.expected_text(), "text is not as it should be");
        }
    }

    fn expected_text(&self) -> Vec<u8> {
        let mut text = self.pristine.clone();
        let armed = |modelled: &Modelled| self.is_on && modelled.is_enabled && !modelled.is_gone;
        for (modelled, _) in self.probes.iter().filter(|(modelled, _)| armed(modelled)) {
            let place = self.functions[modelled.wanted.function] + modelled.wanted.offset;
            text[place - self.world.arena()] = BREAK;
        }
        text
    }

    fn compare_listing(&self) {
        let line = |(modelled, _): &(Modelled, Probe<ToyHost>)| {
            let wanted = &modelled.wanted;
            let letter = match wanted.kind {
                Kind::Kprobe { .. } => 'k',
                Kind::Kretprobe { .. } => 'r',
                Kind::Jprobe => 'j',
            };
            let mark = match (modelled.is_gone, modelled.is_enabled) {
                (true, _) => "[GONE]",
                (false, false) => "[DISABLED]",
                (false, true) => "",
            };
            let place = self.functions[wanted.function] + wanted.offset;
            let module = if wanted.function == FUNCTIONS - 1 { "module" } else { " " };
            let digits = size_of::<usize>() * 2;
            let (function, offset) = (wanted.function, wanted.offset);
            format!("{place:0digits$x}  {letter}  f{function}+{offset:#x}  {module} {mark}")
        };
        let mut expected: Vec<_> = self.probes.iter().map(line).collect();
        let mut listing = String::new();
        self.world.probes.files().list(&mut listing, Viewer::Privileged).unwrap();
        // A jump is an optimisation: the model does not know of it.
        let listing = listing.replace("[OPTIMIZED]", "");
        let mut listed: Vec<_> = listing.lines().map(str::to_owned).collect();
        // Those of one place stand in no order.
        expected.sort();
        listed.sort();
        assert_eq!(listed, expected);
    }

    /// Unregisters everything: then nothing is left anywhere.
    fn end(&mut self) {
        let all: Vec<_> = self.probes.drain(..).map(|(_, probe)| probe).collect();
        self.world.probes.switch(Switch::On).unwrap();
        self.world.probes.unregister_all(all).unwrap();
        (self.is_on, self.may_jump) = (true, false);
        assert!(self.world.text() == self.pristine, "text is not as before");
        self.compare_listing();
        // Detours are kept for good, and slots that a context may be in unseen; return stubs are not.
        assert!(self.world.host().live_chunks.load(SeqCst) <= 2);
        assert_eq!(self.world.host().pins.load(SeqCst), 0);
        assert_eq!(self.world.host().current().0.depth(), 0);
    }
}

/// Runs the operations that these bytes choose: for fuzzers.
#[allow(dead_code, reason = "this file is also a part of probe-fuzz-checks")]
pub fn run_bytes(data: &[u8]) {
    let mut bytes = data.iter().copied();
    // A world lives for ever: one for all inputs, which leave nothing in it.
    let mut pair = PAIR.take().unwrap_or_else(Pair::new);
    for _ in 0..60 {
        let Some(operation) = chosen_operation(&mut bytes) else { break };
        pair.apply(&operation);
    }
    pair.end();
    PAIR.set(Some(pair));
}

thread_local! {
    /// For `run_bytes`.
    static PAIR: std::cell::Cell<Option<Pair>> = const { std::cell::Cell::new(None) };
}

#[allow(dead_code, reason = "as above")]
fn chosen_operation(bytes: &mut impl Iterator<Item = u8>) -> Option<Operation> {
    let choice = bytes.next()?;
    let number = usize::from(bytes.next()?);
    let mut batch = || (0..1 + number % 5).map_while(|_| chosen_probe(bytes)).collect::<Vec<_>>();
    Some(match choice % 16 {
        0..4 => Operation::Register(batch()),
        4 => {
            let batch = batch();
            Operation::RegisterFailing(batch, usize::from(choice / 16) + 1)
        }
        5 | 6 => Operation::Unregister(vec![number; 1 + usize::from(choice / 64)]),
        7 => Operation::Enable(number),
        8 => Operation::Disable(number),
        9 => Operation::Switch(number % 2 == 0),
        10..13 => Operation::Call(number % FUNCTIONS),
        13 if number % 2 == 0 => Operation::Optimise,
        13 => Operation::Unoptimise,
        14 => Operation::Reload,
        _ => Operation::Settle,
    })
}

#[allow(dead_code, reason = "as above")]
fn chosen_probe(bytes: &mut impl Iterator<Item = u8>) -> Option<Wanted> {
    let (choice, place) = (bytes.next()?, usize::from(bytes.next()?));
    let (kind, offset) = match choice % 8 {
        0 => (Kind::Jprobe, 0),
        1 | 2 => (Kind::Kretprobe { declines: choice & 64 != 0 }, 0),
        3 => (Kind::Kprobe { has_post: choice & 64 != 0 }, place % (CODE.len() + 2)),
        _ => (Kind::Kprobe { has_post: choice & 64 != 0 }, STARTS[place % STARTS.len()]),
    };
    Some(Wanted { function: place / 16 % FUNCTIONS, offset, kind, is_disabled: choice & 128 != 0 })
}

#[test]
fn model_of_the_registry_and_the_registry_agree() {
    let persistence = FileFailurePersistence::Direct("tests/contract/model.seeds");
    let mut config = Config { failure_persistence: Some(Box::new(persistence)), ..Config::default() };
    if is_emulated() {
        config.cases /= 8;
    }
    let operations = prop::collection::vec(operation(), 1..60);
    // A world lives for ever with the chunks that it keeps, of which there are a few thousand: sixteen
    // sequences share one. A failure ends it, so that the shorter sequences that are then tried do not
    // inherit what went wrong.
    let shared = std::cell::Cell::new(None);
    let run = TestRunner::new(config).run(&operations, |operations| {
        let (uses, mut pair) = shared.take().unwrap_or_else(|| (1, Pair::new()));
        // A host may store what it is given at once or at a stretch's end.
        pair.world.host().puts_off.store(uses % 2 == 0, SeqCst);
        for operation in &operations {
            pair.apply(operation);
        }
        pair.end();
        shared.set((uses < 16).then_some((uses + 1, pair)));
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Many points at once, so that entries of the table lie behind one another, and slots in one word of their
/// map; taken out in an order of their own.
#[test]
fn model_of_many_points_that_come_and_go_in_any_order() {
    let places = if is_emulated() { 60 } else { 300 };
    let world = World::new();
    let functions: Vec<_> =
        (0..places).map(|index| world.function(&format!("f{index}"), &[ADD, 0, 5, RETURN])).collect();
    let mut probes: Vec<_> = functions
        .iter()
        .map(|function| Some(world.probes.register(K::at(at(*function, 0)).pre(|_| ())).unwrap()))
        .collect();
    // 7 has no common divisor with either: every place once.
    for step in 0..places {
        let at_once = step * 7 % places;
        probes[at_once].take().unwrap().unregister().unwrap();
        // Every third comes back at once, so that slots are given out in between.
        if step % 3 == 0 {
            let place = at(functions[at_once], 0);
            probes[at_once] = Some(world.probes.register(K::at(place).pre(|_| ())).unwrap());
        }
        for (function, probe) in functions.iter().zip(&probes) {
            let before = probe.as_ref().map(|probe| probe.counters().hits);
            assert_eq!(world.value(*function, &[1]), 6, "after step {step}");
            assert_eq!(probe.as_ref().map(|probe| probe.counters().hits), before.map(|hits| hits + 1));
        }
    }
}
