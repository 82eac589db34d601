//! A walk, instruction by instruction: a probe on every instruction of real algorithms and of the C library's
//! floating-point printing, all at once. The output stays the same, and every probe's counter equals what an
//! independent means has counted at its place. Once with pre handlers alone (boosted, simulated), once with
//! post handlers as well (stepped, simulated), and both again by jumps wherever a jump can be. `cargo test
//! --test walk -- FILTER` walks some of it.
//!
//! Rules: HIT_1, HIT_7, HIT_8, HIT_11, REG_6, REG_12.

mod count;
mod places;
mod workloads;

use count::{Counter, Counting, Counts};
use places::Walked;
use probe_host_linux::{Kprobe, Probe, probes, start};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use workloads::{Output, WORKLOADS, Workload};

/// How a workload is run. In this order: no breakpoint has ever stood in what is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// For what happens once only: lazy binding, the library's first look at the locale.
    Warm,
    /// Without probes, counted.
    Counted,
    /// Without probes, for the output.
    Bare,
    /// With pre handlers.
    Pre,
    /// With pre and post handlers.
    Post,
    /// The same two by jumps. A jump displaces several instructions where they are short, so that not all
    /// places can have one at the same time: the second one comes in so many rounds that every place has its
    /// turn.
    PreByJumps,
    PostByJumps(usize),
    /// Without probes again.
    BareAgain,
}

impl Pass {
    fn has_post(self) -> bool {
        matches!(self, Self::Post | Self::PostByJumps(_))
    }
}

/// In which order a workload's passes come.
fn passes() -> impl Iterator<Item = Pass> {
    let before = [Pass::Warm, Pass::Counted, Pass::Bare, Pass::Pre, Pass::Post, Pass::PreByJumps];
    before.into_iter().chain((0..places::ROUNDS).map(Pass::PostByJumps)).chain([Pass::BareAgain])
}

/// What the handlers count, by the probe's index.
struct Tally {
    pre: &'static [AtomicUsize],
    post: &'static [AtomicUsize],
}

impl Tally {
    /// A new one, which stays for good: handlers refer to it.
    fn new(len: usize) -> Self {
        let zeros =
            || -> &'static [AtomicUsize] { Vec::leak((0..len).map(|_| AtomicUsize::new(0)).collect()) };
        Self { pre: zeros(), post: zeros() }
    }
}

/// The probes of one pass.
struct Planted {
    /// Which of the places they are on.
    places: Vec<usize>,
    probes: Vec<Probe>,
    tally: Tally,
}

/// What a handler does.
fn count(calls: &AtomicUsize) {
    calls.fetch_add(1, Relaxed);
}

/// Plants a probe on every place of a pass, all in one batch.
fn plant(walked: &Walked, pass: Pass) -> Result<Planted, String> {
    let places: Vec<usize> = match pass {
        Pass::Pre | Pass::Post => (0..walked.places.len()).collect(),
        Pass::PreByJumps => walked.round(0),
        Pass::PostByJumps(round) => walked.round(round),
        Pass::Warm | Pass::Counted | Pass::Bare | Pass::BareAgain => Vec::new(),
    };
    let tally = Tally::new(places.len());
    let batch = places.iter().enumerate().map(|(index, &place)| {
        let (pre, post) = (&tally.pre[index], &tally.post[index]);
        let probe = Kprobe::at(walked.places[place].to_place()).pre(move |_| count(pre));
        if pass.has_post() { probe.post(move |_| count(post)) } else { probe }
    });
    probes().jumps().set_automatic(matches!(pass, Pass::PreByJumps | Pass::PostByJumps(_)).into());
    let probes = probes().register_all(batch.collect::<Vec<_>>());
    let probes = probes.map_err(|failed| {
        format!("{:x?} is refused: {}", walked.places[places[failed.index]], failed.error)
    })?;
    Ok(Planted { places, probes, tally })
}

/// How many of the probes have jumps.
fn jumps() -> u64 {
    let mut list = String::new();
    let _ = probes().files().list(&mut list, probe_core::files::Viewer::Privileged);
    list.lines().filter(|line| line.ends_with("[OPTIMIZED]")).count() as u64
}

/// What the probes say of one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    /// The probe's counters.
    hits: u64,
    missed: u64,
    /// What the handlers themselves counted.
    pre: u64,
    post: u64,
}

/// What is compared with the independent count.
struct Run {
    output: Box<Output>,
    counts: Counts,
    /// The changes during the run, by the probe's index.
    counted: Vec<Counted>,
}

impl Planted {
    /// What the probes say now. Calls nothing that may be walked while it reads: `into` is allocated.
    fn read(&self, into: &mut [Counted]) {
        for (index, counted) in into.iter_mut().enumerate() {
            let counters = self.probes[index].counters();
            *counted = Counted {
                hits: counters.hits,
                missed: counters.missed_nested,
                pre: self.tally.pre[index].load(Relaxed) as u64,
                post: self.tally.post[index].load(Relaxed) as u64,
            };
        }
    }
}

/// Runs a workload. The only place that does, called from one place, so that the stack is aligned alike in
/// all runs.
#[inline(never)]
fn execute(workload: &Workload, counter: Option<Counter>, planted: &Planted) -> Result<Run, String> {
    let mut output = Box::new(Output::new());
    let mut before = vec![Counted::default(); planted.probes.len()];
    let mut counted = before.clone();
    planted.read(&mut before);
    let counting = match counter {
        Some(counter) => counter.begin()?,
        None => Counting::Here(None),
    };
    if matches!(counting, Counting::Here(_)) {
        (workload.run)(&mut output);
    }
    let counts = counting.end()?;
    planted.read(&mut counted);
    for (now, before) in counted.iter_mut().zip(before) {
        *now = Counted {
            hits: now.hits - before.hits,
            missed: now.missed - before.missed,
            pre: now.pre - before.pre,
            post: now.post - before.post,
        };
    }
    Ok(Run { output, counts, counted })
}

/// Compares every probe's counters, and its handlers' own, with the independent count.
fn check_hits(walked: &Walked, places: &[usize], run: &Run, pass: Pass) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (&index, &counted) in places.iter().zip(&run.counted) {
        let place = &walked.places[index];
        let executed = walked.counts.get(&place.first_byte()).copied().unwrap_or(0);
        let post = if pass.has_post() { executed } else { 0 };
        if counted != (Counted { hits: executed, missed: 0, pre: executed, post }) {
            wrong.push(format!("  {place:x?}: executed {executed} times, but {counted:?}"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    Err(format!("{} of {} places were counted wrongly:\n{shown}", wrong.len(), places.len()))
}

/// Walks one workload, and says what was walked.
fn walk(workload: &Workload, counter: Counter) -> Result<String, String> {
    let mut walked = Walked::default();
    let mut bare: Option<Box<Output>> = None;
    let mut by_jumps = [0; 2];
    for pass in passes() {
        let planted = plant(&walked, pass)?;
        by_jumps[usize::from(pass.has_post())] += jumps();
        let run = execute(workload, (pass == Pass::Counted).then_some(counter), &planted)?;
        match pass {
            Pass::Warm => {}
            Pass::Counted => walked = Walked::find(workload.scope, run.counts)?,
            Pass::Bare => bare = Some(run.output),
            _ => {
                if bare.as_ref().is_none_or(|bare| bare.as_bytes() != run.output.as_bytes()) {
                    return Err(format!("{pass:?}: the output differs: {:x?}", run.output.as_bytes()));
                }
                if pass == Pass::BareAgain {
                    continue;
                }
                check_hits(&walked, &planted.places, &run, pass)
                    .map_err(|wrong| format!("{pass:?}: {wrong}"))?;
            }
        }
        if let Err(left) = probes().unregister_all(planted.probes) {
            return Err(format!("{pass:?}: {} probes could not be unregistered", left.len()));
        }
    }
    let [pre, post] = by_jumps;
    walked.check_jumps(post)?;
    Ok(format!("{}\n    by jumps: {pre} places, and {post} with post handlers", walked.summary()))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        WORKLOADS.iter().for_each(|workload| println!("{}: test", workload.name));
        return ExitCode::SUCCESS;
    }
    let counter = if count::is_under_qemu() { Counter::Plugin } else { Counter::Steps };
    let started = match counter {
        Counter::Plugin => count::restart_with_plugin(),
        Counter::Steps => Ok(()),
    };
    if let Err(error) = started.and_then(|()| start().map(drop).map_err(|error| error.to_string())) {
        eprintln!("nothing can be walked here: {error}");
        return ExitCode::FAILURE;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str);
    let selected: Vec<_> = WORKLOADS.iter().filter(|workload| workload.name.contains(filter)).collect();
    println!("\nrunning {} tests", selected.len());
    let mut failed = 0;
    for workload in &selected {
        match walk(workload, counter) {
            Ok(summary) => println!("test walk::{} ... ok\n{summary}", workload.name),
            Err(error) => {
                println!("test walk::{} ... FAILED\n{error}", workload.name);
                failed += 1;
            }
        }
    }
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out\n",
        if failed == 0 { "ok" } else { "FAILED" },
        selected.len() - failed,
        WORKLOADS.len() - selected.len()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
