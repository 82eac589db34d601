//! Real programs with a probe on every instruction: of the program, of every library that it is linked with,
//! and of the loader, all at once. What they print and their exit status are those of the bare run. Programs
//! with one thread are also run without probes and counted by means that know nothing of probes (`steps`):
//! every probe has then counted what was executed at its place, and what was executed and not probed is a
//! refusal, listed by reason.
//!
//! `cargo test --test everything -- FILTER` runs some of it; `PROBE_EVERYTHING=long` (`cargo ci torture
//! everything`) makes the work larger and adds programs that take minutes.
//!
//! Rules: HIT_1, HIT_7, HIT_8, HIT_11, REG_6, REG_12.

mod places;
mod programs;
mod run;
mod steps;

use places::Code;
use programs::{Count, PROGRAMS, Program};
use run::{Answer, Mode, Runner, Target};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

/// Code that has been read, by its file.
type Library = HashMap<PathBuf, Rc<Code>>;

/// Executions by index of the object and address in its file.
type Counts = BTreeMap<(usize, usize), u64>;

/// What has been seen of refusals: by reason, how many instructions, how many executions, the first of them.
#[derive(Default)]
struct Refused {
    by_reason: BTreeMap<String, (u64, u64, String)>,
    executions: u64,
    /// Of all instructions in the objects.
    executed: u64,
    entries: u64,
}

/// Runs one program in all ways, and says what was seen.
fn check(program: &Program, runner: &Runner, library: &mut Library) -> Result<String, String> {
    let started = Instant::now();
    let target = Target::find(program, runner)?;
    let codes: Vec<Rc<Code>> = target
        .objects
        .iter()
        .map(|path| match library.get(path) {
            Some(code) => Ok(code.clone()),
            None => Code::read(path).map(|code| library.entry(path.clone()).or_insert(code.into()).clone()),
        })
        .collect::<Result<_, String>>()?;
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (object, code) in codes.iter().enumerate() {
        places.extend(code.instructions().into_iter().map(|at| (object, at)));
    }
    let bare = target.run(runner)?;
    let counts = match program.count {
        Count::Output => None,
        Count::Every => Some(executed(&target, runner, &codes, &mut places)?),
    };
    let mut said = format!(
        "    {} places in {} objects, prepared in {:.1} s",
        places.len(),
        codes.len(),
        started.elapsed().as_secs_f64()
    );
    let mut refused = Refused::default();
    for &mode in program.modes() {
        let started = Instant::now();
        let (output, answer) = target.run_probed(runner, mode, &places)?;
        if output != bare {
            return Err(format!("{mode:?}: the output differs\nbare: {bare:.2000}\nprobed: {output:.2000}"));
        }
        let hits = answer.hits(places.len())?;
        let _ = write!(
            said,
            "; {mode:?}: {} hits in {:.1} s",
            hits.iter().map(|hits| hits.0).sum::<u64>(),
            started.elapsed().as_secs_f64()
        );
        let Some(counts) = &counts else { continue };
        let of = |object: usize| target.objects[object].file_name().unwrap_or_default().display();
        let mut wrong = Vec::new();
        for (index, (place, &(pre, post))) in places.iter().zip(&hits).enumerate() {
            let is_planted = !answer.refused.contains_key(&index);
            let counted = counts.get(place).copied().unwrap_or(0);
            let wanted = if is_planted && !answer.is_end(*place) { counted } else { 0 };
            let has_post = mode == Mode::Post && !answer.is_guarded(*place);
            if pre != wanted || post != if has_post { wanted } else { 0 } {
                wrong.push(format!(
                    "  {}+{:#x}: executed {wanted}, pre {pre}, post {post}",
                    of(place.0),
                    place.1
                ));
            }
        }
        if !wrong.is_empty() {
            let first = wrong[..wrong.len().min(20)].join("\n");
            return Err(format!("{mode:?}: {} places are counted wrongly:\n{first}", wrong.len()));
        }
        refused = Refused::of(&answer, &places, counts, &codes);
    }
    refused.check(&mut said).map(|()| said)
}

/// Counts what is executed, and adds to `places` what no function covers.
fn executed(
    target: &Target,
    runner: &Runner,
    codes: &[Rc<Code>],
    places: &mut Vec<(usize, usize)>,
) -> Result<Counts, String> {
    let counts = target.count(runner, codes, places)?;
    let known: std::collections::BTreeSet<_> = places.iter().copied().collect();
    places.extend(counts.keys().filter(|place| !known.contains(place)));
    // In the order of the control file.
    places.sort_unstable();
    Ok(counts)
}

/// Why a probe is refused behind each call on ppc64.
const TOC_RESTORE: &str = "ppc64.toc-restore";

/// What the reasons begin with for which one is refused in a load-and-reserve sequence on ppc64.
const RESERVATIONS: &str = "ppc64.reservation";

impl Refused {
    fn of(answer: &Answer, places: &[(usize, usize)], counts: &Counts, codes: &[Rc<Code>]) -> Self {
        let mut refused = Self { executed: counts.values().sum(), ..Self::default() };
        for (&index, (code, sentence)) in &answer.refused {
            let place = places[index];
            let executions = counts.get(&place).copied().unwrap_or(0);
            let of = refused.by_reason.entry(code.clone()).or_insert_with(|| (0, 0, sentence.clone()));
            of.0 += 1;
            of.1 += executions;
            refused.executions += executions;
            refused.entries += u64::from(codes[place.0].is_entry(place.1) && executions != 0);
        }
        refused
    }

    /// Describes them, and holds what is promised.
    fn check(&self, said: &mut String) -> Result<(), String> {
        for (code, (places, executions, first)) in &self.by_reason {
            let _ = write!(said, "\n    refused: {code}: {places} places, {executions} executions; {first}");
        }
        if self.executed == 0 {
            return Ok(());
        }
        let share = self.executions as f64 / self.executed as f64 * 100.0;
        let _ = write!(said, "\n    refused of {} executed: {share:.4} %", self.executed);
        if self.entries != 0 {
            return Err(format!("{said}\n{} entries of functions were refused and executed", self.entries));
        }
        // What unwinders read in text has to stay, and the next instruction sees the same registers.
        let read = self.by_reason.get(TOC_RESTORE).map_or(0, |&(_, executions, _)| executions);
        let by_reason = self.by_reason.iter();
        let reservations = by_reason.filter(|(code, _)| code.starts_with(RESERVATIONS));
        let reserved: u64 = reservations.map(|(_, &(_, executions, _))| executions).sum();
        let percent = |executions: u64| executions as f64 / self.executed as f64 * 100.0;
        // 0.1 % is the goal for all programs together: the locks of a stream are much of what little some do.
        let is_too_much = percent(reserved) >= 0.3 || percent(self.executions - read - reserved) >= 0.1;
        if is_too_much { Err(format!("{said}\nthat is too much")) } else { Ok(()) }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        PROGRAMS.iter().for_each(|program| println!("{}: test", program.name));
        return ExitCode::SUCCESS;
    }
    let runner = match Runner::new() {
        Ok(runner) => runner,
        Err(error) => {
            println!("everything: nothing can be run here: {error}");
            return if cfg!(target_env = "gnu") { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str);
    let is_chosen = |program: &&Program| {
        program.name.contains(filter) && program.is_here() && (!program.is_long || programs::is_long())
    };
    let chosen: Vec<_> = PROGRAMS.iter().filter(is_chosen).collect();
    println!("\nrunning {} tests", chosen.len());
    let (mut failed, mut skipped) = (0, 0);
    let mut library = Library::new();
    for program in &chosen {
        if let Some(missing) = program.missing() {
            println!("test everything::{} ... SKIPPED: there is no {missing}", program.name);
            skipped += 1;
            continue;
        }
        // A program that asks how many processors there are gets the same answer when it is stepped.
        let cpus = (program.count == Count::Every).then(steps::stay_on_one_cpu).transpose();
        let checked = cpus.and_then(|cpus| {
            let checked = check(program, &runner, &mut library);
            cpus.map_or(Ok(()), |cpus| steps::go_where(&cpus)).and(checked)
        });
        match checked {
            Ok(said) => println!("test everything::{} ... ok\n{said}", program.name),
            Err(error) => {
                println!("test everything::{} ... FAILED\n{error}", program.name);
                failed += 1;
            }
        }
    }
    let _ = std::fs::remove_dir_all(programs::scratch());
    println!(
        "\ntest result: {}. {} passed; {failed} failed; {skipped} skipped; 0 measured; {} filtered out\n",
        if failed == 0 { "ok" } else { "FAILED" },
        chosen.len() - failed - skipped,
        PROGRAMS.len() - chosen.len()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
