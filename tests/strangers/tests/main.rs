//! Small hostile and odd programs (`programs/*.c`, one question each), bare and traced: with probes on all of
//! the C library or all of the program, on entries or returns, by jump or by trap. Standard output and error,
//! the exit status or signal, what a program itself says of its descriptors, masks, dispositions and stacks,
//! processes left behind, and counts are those of the bare run; a run that does not end has failed.
//!
//! `cargo test -p probe-tests-strangers` runs a dozen of them in two modes; `PROBE_STRANGERS=long` (`cargo ci
//! torture strangers`) all in all modes. Arguments: `--only TEXT` (parts of `PROGRAM/MODE`, with commas
//! between), `--mode TEXT`, `--list`.
//!
//! Rules: HIT_1, HIT_8, HIT_12, HIT_13, REG_19, REG_20, RET_5, RET_7, EVT_1, EVT_2.

mod compare;
mod mode;
mod program;
mod run;

use compare::Verdict;
use mode::{MODES, Mode};
use program::Program;
use run::{Runner, Seen};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// No run takes longer, also beside much else; the longest takes ten seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Runs at a time.
const JOBS: usize = 2;

/// What is to be run.
struct Wanted {
    only: String,
    mode: String,
    lists: bool,
    is_long: bool,
}

impl Wanted {
    fn of(arguments: impl Iterator<Item = String>) -> Self {
        let is_long = std::env::var("PROBE_STRANGERS").is_ok_and(|form| form == "long");
        let mut wanted = Self { only: String::new(), mode: String::new(), lists: false, is_long };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--only" => wanted.only = arguments.next().unwrap_or_default(),
                "--mode" => wanted.mode = arguments.next().unwrap_or_default(),
                "--list" => wanted.lists = true,
                // What the test harness knows and this one does not need.
                option if option.starts_with('-') => {}
                _ => wanted.only = argument,
            }
        }
        wanted
    }

    fn has(&self, program: &Program, mode: &Mode) -> bool {
        (self.is_long || program.is_short && mode.is_short)
            && self.only.split(',').any(|part| format!("{}/{}", program.name, mode.name).contains(part))
            && mode.name.contains(&self.mode)
    }
}

/// Builds the command as this test is built, and returns it.
fn probe() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // `target/debug/deps/strangers-…`
    let folder = own.ancestors().nth(2).ok_or("this test is not in a target folder")?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build.args(["build", "--quiet", "--package", "probe-trace", "--bin", "probe"]);
    build.args((!cfg!(debug_assertions)).then_some("--release"));
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().map_err(|error| error.to_string())?;
    if built.success() { Ok(folder.join("probe")) } else { Err("`probe` does not build".to_owned()) }
}

/// Calls `work` for every index below `count`, several at a time.
fn each(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        index if index < count => work(index),
                        _ => break,
                    }
                }
            });
        }
    });
}

/// What came of all.
#[derive(Default)]
struct Results {
    /// Of each case.
    cases: BTreeMap<(String, &'static str), (Verdict, String)>,
    /// Programs that this machine cannot run, and why.
    skipped: Vec<String>,
    /// Programs that could not even be run bare, and documents that no longer say the truth.
    broken: Vec<String>,
}

/// What a bare run tells.
enum Bare {
    /// What to compare with.
    Seen(Seen),
    /// The machine cannot do what the program asks.
    Skipped(String),
}

/// Runs each program bare, then in its modes.
fn run(runner: &Runner, chosen: &[(&Program, Vec<&'static Mode>)]) -> Results {
    let results = Mutex::new(Results::default());
    let locked = || results.lock().expect("no case panics");
    let all: usize = chosen.iter().map(|(_, modes)| modes.len()).sum();
    let width = width(chosen);
    each(chosen.len(), |index| {
        let (program, modes) = &chosen[index];
        let name = &program.name;
        let bare = match bare(runner, program) {
            Ok(Bare::Seen(bare)) => bare,
            Ok(Bare::Skipped(why)) => {
                println!("{:>4}/{all} {name:width$} {why}", "-");
                return locked().skipped.push(format!("{name}: {why}"));
            }
            Err(error) => return locked().broken.push(format!("{name}: {error}")),
        };
        let mut seen_kinds = Vec::new();
        for mode in modes {
            let started = Instant::now();
            let seen = match runner.run(program, Some(mode)) {
                Ok(seen) => seen,
                Err(error) => return locked().broken.push(format!("{name}: {error}")),
            };
            let compared = compare::compare(program, mode, &bare, &seen);
            seen_kinds.extend(compared.kinds.iter().map(|kind| (mode.name, *kind)));
            let mut results = locked();
            results.cases.insert((name.clone(), mode.name), (compared.verdict, compared.said));
            println!(
                "{:>4}/{all} {name:width$} {:COLUMN$} {:COLUMN$} {:>5.1} s",
                results.cases.len(),
                mode.name,
                compared.verdict,
                started.elapsed().as_secs_f64()
            );
        }
        if modes.len() == MODES.len() {
            let stale = program.no_longer_so(&seen_kinds);
            locked().broken.extend(stale.map(|said| format!("{name}: nothing differs any more: {said}")));
        }
    });
    results.into_inner().expect("no case panics")
}

/// The bare run, twice: what differs between these says nothing about probes.
fn bare(runner: &Runner, program: &Program) -> Result<Bare, String> {
    if let Some(tool) = program.under.first().filter(|tool| !run::is_installed(tool)) {
        return Ok(Bare::Skipped(format!("skipped: {tool} is not installed")));
    }
    program.build(&runner.built)?;
    let (first, second) = (runner.run(program, None)?, runner.run(program, None)?);
    let parts = |seen: &Seen| (seen.end, seen.stdout.clone(), seen.stderr.clone(), seen.left);
    if parts(&first) != parts(&second) {
        return Err(format!("it is not the same twice: {first:?}, {second:?}"));
    }
    match first.end {
        run::End::Hang => Err("it does not end".to_owned()),
        run::End::Status(98) => Err(format!("it fails: {:?}", String::from_utf8_lossy(&first.stderr))),
        // Its own word.
        run::End::Status(77) => Ok(Bare::Skipped(String::from_utf8_lossy(&first.stdout).trim().to_owned())),
        _ => Ok(Bare::Seen(first)),
    }
}

/// The width of a column.
const COLUMN: usize = 14;

/// How long the longest name is.
fn width(chosen: &[(&Program, Vec<&'static Mode>)]) -> usize {
    chosen.iter().map(|(program, _)| program.name.len()).max().unwrap_or(0)
}

/// The table, and below it what differs.
fn print(chosen: &[(&Program, Vec<&'static Mode>)], results: &Results) {
    let modes: Vec<&Mode> =
        MODES.iter().filter(|mode| chosen.iter().any(|(_, of)| of.contains(mode))).collect();
    let width = width(chosen);
    let line = |name: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:COLUMN$}")).collect();
        println!("{}", format!("{name:width$}{cells}").trim_end());
    };
    println!();
    line("", &modes.iter().map(|mode| mode.name.to_owned()).collect::<Vec<_>>());
    for (program, _) in chosen {
        let cell = |mode: &&Mode| results.cases.get(&(program.name.clone(), mode.name));
        let cell = |mode| cell(mode).map_or("-".to_owned(), |(verdict, _)| verdict.to_string());
        line(&program.name, &modes.iter().map(cell).collect::<Vec<_>>());
    }
    chosen.iter().for_each(|(program, modes)| details(program, modes, results));
    results.skipped.iter().for_each(|why| println!("\n{why}"));
    results.broken.iter().for_each(|error| println!("\nBROKEN {error}"));
}

/// What differs, and in which modes.
fn details(program: &Program, modes: &[&'static Mode], results: &Results) {
    let mut by_text: Vec<(&str, Vec<String>)> = Vec::new();
    for mode in modes {
        let Some((verdict, said)) = results.cases.get(&(program.name.clone(), mode.name)) else { continue };
        if *verdict <= Verdict::Documented {
            continue;
        }
        let mode = format!("{} {verdict}", mode.name);
        match by_text.iter_mut().find(|(known, _)| known == said) {
            Some((_, modes)) => modes.push(mode),
            None => by_text.push((said, vec![mode])),
        }
    }
    if !by_text.is_empty() {
        println!("\n{}: {}", program.name, program.asks);
    }
    for (said, modes) in by_text {
        println!(" {}\n{said}", modes.join(", "));
    }
}

fn go(wanted: &Wanted) -> Result<bool, String> {
    let programs = program::all()?;
    let modes = |program: &Program| MODES.iter().filter(|mode| wanted.has(program, mode)).collect::<Vec<_>>();
    let chosen: Vec<_> = programs.iter().map(|program| (program, modes(program))).collect();
    let chosen: Vec<_> = chosen.into_iter().filter(|(_, modes)| !modes.is_empty()).collect();
    if wanted.lists {
        for (program, modes) in &chosen {
            modes.iter().for_each(|mode| println!("{}/{}: test", program.name, mode.name));
        }
        return Ok(true);
    }
    let started = Instant::now();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("strangers");
    let runner =
        Runner { probe: probe()?, built: folder.join("built"), scratch: folder.join("runs"), limit: LIMIT };
    for folder in [&runner.built, &runner.scratch] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    println!("\nrunning {} programs", chosen.len());
    let results = run(&runner, &chosen);
    print(&chosen, &results);
    let Results { cases, skipped, broken } = &results;
    let bad = cases.values().filter(|(verdict, _)| *verdict > Verdict::Documented).count();
    let is_good = bad == 0 && broken.is_empty();
    println!(
        "\ntest result: {}. {} passed; {bad} failed; {} skipped; {} broken, in {:.0} s\n",
        if is_good { "ok" } else { "FAILED" },
        cases.len() - bad,
        skipped.len(),
        broken.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(is_good)
}

fn main() -> ExitCode {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu", target_os = "linux")) {
        println!("strangers: they are written for Linux on x86-64 with glibc");
        return ExitCode::SUCCESS;
    }
    match go(&Wanted::of(std::env::args().skip(1))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("strangers: {error}");
            ExitCode::FAILURE
        }
    }
}
