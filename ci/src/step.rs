//! Steps: one command each, run under a time limit with its output kept, and the report about all of them.
//!
//! A step ends by its exit status, or it failed: no result within the limit is a failure too. What cannot run
//! here is a skipped step with its reason in the report, never a silent one.

mod child;
mod report;

pub(crate) use child::{run_lines, run_within};
pub(crate) use report::{Outcome, cases_of};

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::command::clean;
use child::{follow, spawn};
use report::{Finished, Screen, count_cases, report};

/// How many lines of a failed step's output are shown; all of it is in its log.
const SHOWN_LINES: usize = 120;
/// How many jobs run at once at most: more would wait for each other's builds.
const MAX_LANES: usize = 4;

/// What a step does.
#[derive(Debug)]
pub(crate) enum Action {
    /// A program and its arguments.
    Run(Vec<String>),
    /// A check inside this program: it answers what is wrong.
    Check(fn(&Path) -> Result<(), String>),
    /// Nothing, for this reason.
    Skip(String),
    /// It is known beforehand that it cannot work, for this reason.
    Fail(String),
}

/// One step of a job.
#[derive(Debug)]
pub(crate) struct Step {
    /// What the report calls it.
    pub(crate) name: String,
    /// What it does.
    pub(crate) action: Action,
    /// Where, relative to the workspace's root.
    pub(crate) folder: PathBuf,
    /// Environment variables on top of the inherited ones.
    pub(crate) env: Vec<(&'static str, String)>,
    /// No result after this long is a failure.
    pub(crate) limit: Duration,
}

impl Step {
    /// A step that runs `words` in the workspace's root.
    pub(crate) fn run(name: impl Into<String>, words: &[&str]) -> Self {
        Self::new(name, Action::Run(words.iter().map(|&word| word.to_owned()).collect()))
    }

    /// A step that checks something inside this program.
    pub(crate) fn check(name: impl Into<String>, check: fn(&Path) -> Result<(), String>) -> Self {
        Self::new(name, Action::Check(check))
    }

    /// A step that cannot run here.
    pub(crate) fn skip(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(name, Action::Skip(reason.into()))
    }

    /// A step that has failed already.
    pub(crate) fn fail(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(name, Action::Fail(reason.into()))
    }

    /// The same step with more arguments.
    pub(crate) fn args<'a>(mut self, more: impl IntoIterator<Item = &'a str>) -> Self {
        if let Action::Run(words) = &mut self.action {
            words.extend(more.into_iter().map(str::to_owned));
        }
        self
    }

    /// The same step in another folder of the workspace.
    pub(crate) fn within(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = folder.into();
        self
    }

    /// The same step with an environment variable.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    fn new(name: impl Into<String>, action: Action) -> Self {
        Self {
            name: name.into(),
            action,
            folder: PathBuf::new(),
            env: Vec::new(),
            limit: Duration::from_secs(15 * 60),
        }
    }

    /// The command as one would type it.
    fn spelt(&self) -> String {
        let Action::Run(words) = &self.action else { return String::new() };
        let mut line = String::new();
        if self.folder != Path::new("") {
            line.push_str(&format!("cd {} && ", self.folder.display()));
        }
        for (name, value) in &self.env {
            line.push_str(&format!("{name}={} ", quoted(value)));
        }
        line + &words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

/// `word` as a shell needs it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Runs the steps of all `jobs` (a failure does not hide the next), prints each and then the report, whose
/// last line is the sum. Answers whether nothing failed.
///
/// Steps of one job run in their order, as they may need each other; as many jobs run at once as there are
/// cores. A job's build has all cores and keeps the next one's waiting; tests mostly have one core each. With
/// `verbose` jobs run one after the other, or their output would mix.
pub(crate) fn run_all(root: &Path, jobs: &[Vec<Step>], verbose: bool) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let lanes = if verbose { 1 } else { cores.min(MAX_LANES).min(jobs.len()) };
    let screen = Screen::new(verbose);
    let count: usize = jobs.iter().map(Vec::len).sum();
    let (next, begun) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let finished = Mutex::new(Vec::new());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(steps) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for step in steps {
                        let tag = format!("[{}/{count}]", begun.fetch_add(1, Ordering::Relaxed) + 1);
                        let one = run_one(root, step, &tag, &screen);
                        finished.lock().expect("no lane panics").push(one);
                    }
                }
            });
        }
    });
    let finished = finished.into_inner().expect("no lane panics");
    print!("{}", report(&finished, started.elapsed()));
    finished.iter().all(|step| !matches!(step.outcome, Outcome::Failed(_)))
}

/// Runs one step; `tag` says which of how many it is.
fn run_one(root: &Path, step: &Step, tag: &str, screen: &Screen) -> Finished {
    screen.print(&[format!("{tag} {}", step.name), format!("      {}", step.spelt())]);
    let started = Instant::now();
    let mut cases = [0; 3];
    let mut shown = Vec::new();
    let outcome = match &step.action {
        Action::Skip(reason) => Outcome::Skipped(reason.clone()),
        Action::Fail(reason) => Outcome::Failed(reason.clone()),
        Action::Check(check) => check(root).map_or_else(
            |wrong| {
                shown.extend(wrong.lines().map(str::to_owned));
                Outcome::Failed(wrong.lines().next().unwrap_or("").to_owned())
            },
            |()| Outcome::Passed,
        ),
        Action::Run(words) => {
            let name = step.name.replace(['/', ' ', ':'], "_");
            let log = root.join(format!("target/ci/logs/{name}.log"));
            run_logged(root, step, words, &log, screen, &mut cases, &mut shown)
        }
    };
    let took = started.elapsed();
    let tail = match &outcome {
        Outcome::Passed => "passed".to_owned(),
        Outcome::Failed(why) => format!("FAILED: {why}"),
        Outcome::Skipped(why) => format!("skipped: {why}"),
    };
    shown.push(format!("{tag} {}: {tail} ({:.1} s)", step.name, took.as_secs_f64()));
    screen.print(&shown);
    Finished { name: step.name.clone(), outcome, took, cases }
}

/// Runs a command with its output in `log`, its last line as progress on a terminal, and its end in `shown`
/// when it fails.
fn run_logged(
    root: &Path,
    step: &Step,
    words: &[String],
    log: &Path,
    screen: &Screen,
    cases: &mut [u64; 3],
    shown: &mut Vec<String>,
) -> Outcome {
    let failed = |what: &str, error: std::io::Error| Outcome::Failed(format!("cannot {what}: {error}"));
    if let Err(error) = fs::create_dir_all(log.parent().unwrap_or(root)) {
        return failed("make the folder of logs", error);
    }
    let mut kept = match File::create(log) {
        Ok(file) => file,
        Err(error) => return failed("write a log", error),
    };
    let mut command = clean(Command::new(&words[0]));
    command.args(&words[1..]).current_dir(root.join(&step.folder));
    command.envs(step.env.iter().map(|(name, value)| (name, value)));
    let (mut child, lines) = match spawn(command) {
        Ok(spawned) => spawned,
        Err(error) => return failed(&format!("run {}", words[0]), error),
    };
    let mut all = Vec::new();
    let started = Instant::now();
    // Line by line, so that a long step can be watched.
    let mut write = Ok(());
    let status = follow(&mut child, &lines, step.limit, |line| {
        if write.is_ok() {
            write = writeln!(kept, "{line}");
        }
        count_cases(&line, cases);
        screen.progress(&step.name, started.elapsed(), &line);
        all.push(line);
    });
    match (status, write) {
        (_, Err(error)) => failed("write a log", error),
        (Ok(Some(status)), _) if status.success() => Outcome::Passed,
        (Ok(status), _) => {
            if !screen.verbose {
                let from = all.len().saturating_sub(SHOWN_LINES);
                shown.push(format!("      ---- the last {} lines of {}", all.len() - from, log.display()));
                shown.extend(all[from..].iter().map(|line| format!("      | {line}")));
            }
            let log = log.strip_prefix(root).unwrap_or(log).display();
            Outcome::Failed(match status {
                Some(status) => format!("{status}, see {log}"),
                None => format!("no result after {} s, see {log}", step.limit.as_secs()),
            })
        }
        (Err(error), _) => failed("wait", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn outcome_of(step: &Step) -> Outcome {
        let root = std::env::temp_dir().join(format!("probe-ci-{}-{}", std::process::id(), step.name));
        fs::create_dir_all(&root).unwrap();
        let Action::Run(words) = &step.action else { panic!("not a command") };
        let outcome = run_logged(
            &root,
            step,
            words,
            &root.join("log"),
            &Screen::new(false),
            &mut [0; 3],
            &mut Vec::new(),
        );
        fs::remove_dir_all(root).unwrap();
        outcome
    }

    #[test]
    fn exit_status_decides() {
        assert_eq!(outcome_of(&Step::run("true", &["true"])), Outcome::Passed);
        assert!(matches!(outcome_of(&Step::run("false", &["false"])), Outcome::Failed(_)));
        assert!(matches!(outcome_of(&Step::run("absent", &["/nonexistent/program"])), Outcome::Failed(_)));
    }

    #[test]
    fn no_result_is_a_failure_and_nothing_stays_behind() {
        // The other end of the pipe is closed when the last process that was started has ended.
        let pipe = std::env::temp_dir().join(format!("probe-ci-{}-pipe", std::process::id()));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (sender, ended) = mpsc::channel();
        let read_end = pipe.clone();
        std::thread::spawn(move || sender.send(fs::read(read_end).is_ok()));
        let mut step = Step::run("hang", &["sh", "-c", &format!("sleep 86400 > {} & wait", pipe.display())]);
        step.limit = Duration::from_millis(300);
        let Outcome::Failed(why) = outcome_of(&step) else { panic!("it passed") };
        assert!(why.starts_with("no result after 0 s"), "{why}");
        // If it was ended before it had opened the pipe: opened for both, which never waits, and closed.
        drop(File::options().read(true).write(true).open(&pipe).unwrap());
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true), "something was left running");
        fs::remove_file(pipe).unwrap();
    }
}
