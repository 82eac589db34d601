//! `probe trace`.

use super::args::{OnFull, Trace};
#[cfg(has_mapped)]
use super::attach::{self, Begun, Keeper};
use super::consumer::{Consumer, Sink, Verdict};
use super::failure::{Failure, failed};
use super::foreign;
use super::open::FileId;
use super::output::{self, Looks, label};
use super::program::Way;
use super::query::{self, Query};
use super::status::Status;
use super::{launch, program, record};
use crate::AGENT;
use crate::wire::{Flags, Layout, MapRoom, Plan, Region};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};

/// How the command ends: as the program did.
pub(super) enum Outcome {
    /// With this exit status.
    Status(u8),
    /// By this signal.
    Signal(i32),
}

impl Outcome {
    /// How a command ends that has written `what`: whoever reads no further is no failure.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn written(done: io::Result<()>, what: &str) -> Result<Self, Failure> {
        match done {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Self::Signal(libc::SIGPIPE)),
            Err(error) => Err(failed(format!("{what} could not be written: {error}"))),
            Ok(()) => Ok(Self::Status(Status::Success.code())),
        }
    }
}

/// Runs the program with the probes in it.
///
/// # Errors
/// Bad input, in one sentence; then the program's `main` has not run.
pub(super) fn run(args: &Trace) -> Result<Outcome, Failure> {
    let mut maps = MapRoom::default();
    let (queries, plans) = query::queries(&args.clauses, &mut maps)?;
    let path = program::find(&args.program[0])?;
    let runner = args.runner.clone().or_else(|| std::env::var_os(crate::RUNNER_VARIABLE));
    let what = launch::What { path: &path, argv: &args.program, runner: runner.as_deref() };
    match program::way_into(&path)? {
        Way::Loaded => {}
        #[cfg(has_mapped)]
        Way::Put => return put(args, &what, queries, &plans, &maps),
        #[cfg(not(has_mapped))]
        Way::Put => return Err(failed("this `probe` has no agent that it could put into a program")),
    }
    let agent = AGENT.ok_or_else(|| failed("this `probe` was built without an agent for its own machine"))?;
    let sink = sink(args, &queries)?;
    let (region, region_fd) = region(args, &plans, &maps)?;
    let agent_fd = launch::agent_file(agent)
        .map_err(|error| failed(format!("the agent cannot be stored in memory: {error}")))?;
    region.read_here();
    // Before there is a second thread.
    #[cfg(has_mapped)]
    let keeper = if args.follow && what.runner.is_none() { Some(keeper(&region, true)?) } else { None };
    let started = launch::start(&what, &launch::path_of(&agent_fd), &launch::path_of(&region_fd))
        .map_err(|failure| failure.with(Status::NotTraceable))?;
    if let Some(sentence) = started.debugger(&args.program[0]) {
        eprintln!("probe: {sentence}");
    }
    let done = AtomicBool::new(false);
    let region_id = FileId::of(&region_fd).map_err(Failure::new)?;
    #[cfg(has_mapped)]
    let follows = queries.iter().any(|query| query.definition.is_return());
    let consumer = Consumer::new(region, region_id, queries, sink, args.every);
    #[cfg(has_mapped)]
    let paths = [&region_fd, &agent_fd].map(launch::path_of);
    let ((status, not_followed), verdict) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| consumer.run(&done));
        let waited = || started.wait(args.duration);
        #[cfg(has_mapped)]
        let over = {
            let [path, loaded] = &paths;
            let agent = crate::MAPPED_AGENT.unwrap_or_default();
            let what = attach::What { agent, region, path, follows, loaded: Some(loaded) };
            let answers = keeper.as_ref().map(|keeper| (&what, keeper));
            attach::while_answering(answers, Some(&started), waited)
        };
        #[cfg(not(has_mapped))]
        let over = (waited(), Vec::new());
        done.store(true, Ordering::Release);
        region.wake_now();
        (over, reader.join())
    });
    let mut verdict = verdict.map_err(|_| failed("the reader of events has failed"))?;
    verdict.summary.not_followed.extend(not_followed);
    conclude(args, status, verdict)
}

/// Runs a program that the agent is put into, as no dynamic linker loads it there.
#[cfg(has_mapped)]
fn put(
    args: &Trace,
    what: &launch::What<'_>,
    queries: Vec<Query>,
    plans: &[Plan],
    maps: &MapRoom,
) -> Result<Outcome, Failure> {
    let shown = foreign::path(what.path);
    let refuse = |why: &str| {
        let sentence = format!("`{shown}` is a program that no dynamic linker of glibc's starts: {why}");
        Err(Failure::new(sentence).with(Status::NotTraceable))
    };
    if what.runner.is_some_and(|runner| !runner.is_empty()) {
        return refuse("such are not traced under an emulator");
    }
    let agent = crate::MAPPED_AGENT.ok_or_else(|| failed("this `probe` has no agent for such programs"))?;
    let follows = queries.iter().any(|query| query.definition.is_return());
    let sink = sink(args, &queries)?;
    let (region, region_fd) = region(args, plans, maps)?;
    let loaded_fd = launch::agent_of_children(args.follow)?;
    let loaded = loaded_fd.as_ref().map(launch::path_of);
    region.read_here();
    // Before there is a second thread.
    let keeper = keeper(&region, args.follow)?;
    let (started, mask) =
        launch::start_stopped(what).map_err(|failure| failure.with(Status::NotTraceable))?;
    let done = AtomicBool::new(false);
    let region_id = FileId::of(&region_fd).map_err(Failure::new)?;
    let consumer = Consumer::new(region, region_id, queries, sink, args.every);
    let (status, verdict) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| consumer.run(&done));
        let path = launch::path_of(&region_fd);
        let what = attach::What { agent, region, path: &path, follows, loaded: loaded.as_deref() };
        keeper.watch(started.pid());
        let status = attach::begin(started.pid(), &mask, &what).map(|begun| match begun {
            Begun::Running => {
                let answers = args.follow.then_some((&what, &keeper));
                attach::while_answering(answers, Some(&started), || started.wait(args.duration))
            }
            Begun::Refused => (ExitStatus::from_raw(libc::SIGKILL), Vec::new()),
            Begun::Ended(status) => (status, Vec::new()),
        });
        done.store(true, Ordering::Release);
        region.wake_now();
        (status, reader.join())
    });
    drop(keeper);
    let mut verdict = verdict.map_err(|_| failed("the reader of events has failed"))?;
    let (status, not_followed) = status?;
    verdict.summary.not_followed.extend(not_followed);
    conclude(args, status, verdict)
}

/// The process that takes agents away when this one has been killed. There is no second thread. If programs
/// that are executed are followed, agents may call from now on.
#[cfg(has_mapped)]
pub(super) fn keeper(region: &Region, is_followed: bool) -> Result<Keeper, Failure> {
    if is_followed {
        region.calls().begin();
    }
    Keeper::start().map_err(|error| failed(format!("a process cannot be started: {error}")))
}

/// The memory that is shared with the agents.
pub(super) fn region(args: &Trace, plans: &[Plan], maps: &MapRoom) -> Result<(Region, OwnedFd), Failure> {
    let config = Plan::encode_all(plans);
    let flags = Flags {
        follow: args.follow,
        no_events: args.no_events,
        no_jumps: args.no_jumps,
        wait: args.on_full == OnFull::Wait,
    };
    let layout = Layout::new(config.len(), maps, args.buffer);
    Region::create(layout, &config, flags).map_err(failed)
}

/// Where events go.
pub(super) fn sink(args: &Trace, queries: &[Query]) -> Result<Box<dyn Sink>, Failure> {
    if args.is_record {
        return record::sink(args, queries);
    }
    let looks = Looks { format: args.format, color: args.color, top: args.top };
    output::written(args.output.as_deref(), looks, output::widest_name(queries.iter().map(label)))
}

/// Prints the summary, or says why there is none.
fn conclude(args: &Trace, status: ExitStatus, mut verdict: Verdict) -> Result<Outcome, Failure> {
    if let Some(error) = verdict.failure {
        // No definition is to blame.
        let general = |sentence| Failure::new(sentence).with(Status::NotTraceable);
        return Err(if error.text.is_empty() { general(error.sentence) } else { error.into() });
    }
    let shown = foreign::os(&args.program[0]);
    if !verdict.is_ready {
        return Err(failed(format!(
            "the agent did not start in `{shown}` (which {}), so nothing was traced",
            ended(status)
        )));
    }
    verdict.summary.ended = ended(status);
    Ok(match own_status(&mut verdict) {
        // Who reads the events has gone: as if they had been written by the program's `write`.
        None => Outcome::Signal(libc::SIGPIPE),
        Some(own) => outcome(status, own),
    })
}

/// Prints the summary and returns the command's own status; `None` if nobody reads.
pub(super) fn own_status(verdict: &mut Verdict) -> Option<Status> {
    if verdict.sink_failed.is_none() {
        verdict.sink_failed = verdict.sink.summary(&verdict.summary).err();
    }
    match &verdict.sink_failed {
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
        Some(error) => {
            eprintln!("probe: events could not be written: {error}");
            Some(Status::Failed)
        }
        None if !verdict.summary.never_planted.is_empty() => Some(Status::NotPlanted),
        None => Some(Status::Success),
    }
}

/// The outcome is the program's; the command's own status counts only if the program has succeeded.
fn outcome(program: ExitStatus, own: Status) -> Outcome {
    match (program.code(), program.signal()) {
        (_, Some(signal)) => Outcome::Signal(signal),
        (Some(0), None) => Outcome::Status(own.code()),
        (code, None) => {
            let code = code.and_then(|code| u8::try_from(code).ok());
            Outcome::Status(code.unwrap_or(Status::Failed.code()))
        }
    }
}

/// `exited with 0`, `was killed by SIGTERM (15)`.
fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(signal)) => {
            // SAFETY: a constant string for every number; NULL never.
            let name = unsafe { libc::strsignal(signal) };
            if name.is_null() {
                return format!("was killed by signal {signal}");
            }
            // SAFETY: NUL-terminated, valid until the next call in this thread.
            let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy();
            format!("was killed by signal {signal} ({name})")
        }
        _ => "ended".into(),
    }
}
