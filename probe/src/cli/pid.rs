//! `probe trace --pid`: programs that run already.

use super::args::Trace;
use super::failure::{Failure, failed};
use super::trace::Outcome;

/// Traces processes until they end, the time is over, or a signal comes.
///
/// # Errors
/// Bad input, or a process cannot be traced; all go on as before.
#[cfg(not(has_mapped))]
pub(super) fn run(_args: &Trace) -> Result<Outcome, Failure> {
    Err(failed("this `probe` has no agent for programs that run already: it has one on x86-64 with glibc"))
}

/// Traces processes until they end, the time is over, or a signal comes.
///
/// # Errors
/// Bad input, or a process cannot be traced; all go on as before.
#[cfg(has_mapped)]
pub(super) fn run(args: &Trace) -> Result<Outcome, Failure> {
    use super::attach::{Door, Signals, What};
    use super::consumer::Consumer;
    use super::open::FileId;
    use super::{launch, processes, query, trace};
    use crate::wire::{MOST_PLACED, MapRoom};
    use std::sync::atomic::{AtomicBool, Ordering};

    let mut maps = MapRoom::default();
    let (queries, plans) = query::queries(&args.clauses, &mut maps)?;
    let agent =
        crate::MAPPED_AGENT.ok_or_else(|| failed("this `probe` has no agent for running programs"))?;
    let follows = queries.iter().any(|query| query.definition.is_return());
    let pids = processes::find(&args.pids)?;
    if pids.len() > MOST_PLACED {
        return Err(Failure::new(format!("one `probe` traces {MOST_PLACED} processes, not {}", pids.len())));
    }
    let doors: Vec<Door> = pids.iter().map(|&pid| Door::of(pid, follows)).collect::<Result<_, _>>()?;
    let sink = trace::sink(args, &queries)?;
    let (region, region_fd) = trace::region(args, &plans, &maps)?;
    let loaded_fd = launch::agent_of_children(args.follow)?;
    let loaded = loaded_fd.as_ref().map(launch::path_of);
    // Before there is a second thread.
    let keeper = trace::keeper(&region, args.follow)?;
    region.read_here();
    let signals =
        Signals::hold().map_err(|error| failed(format!("signals cannot be waited for: {error}")))?;
    let region_id = FileId::of(&region_fd).map_err(Failure::new)?;
    let consumer = Consumer::new(region, region_id, queries, sink, args.every).awaiting(doors.len());
    let done = AtomicBool::new(false);
    let (left, verdict) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| consumer.run(&done));
        let what =
            What { agent, region, path: &launch::path_of(&region_fd), follows, loaded: loaded.as_deref() };
        let left = until_over(doors, &what, &keeper, &signals, args.duration);
        done.store(true, Ordering::Release);
        region.wake_now();
        (left, reader.join())
    });
    drop(keeper);
    let (left, not_followed) = left;
    let left = left?;
    let mut verdict = verdict.map_err(|_| failed("the reader of events has failed"))?;
    if let Some(error) = verdict.failure.take() {
        return Err(if error.text.is_empty() { Failure::new(error.sentence) } else { error.into() });
    }
    let Some(left) = left.filter(|_| verdict.is_ready) else {
        let all: Vec<String> = pids.iter().map(ToString::to_string).collect();
        return Err(failed(format!(
            "the agent did not start in process {}, so nothing was traced",
            all.join(" or ")
        )));
    };
    verdict.summary.ended = left;
    verdict.summary.not_followed.extend(not_followed);
    Ok(match trace::own_status(&mut verdict) {
        None => Outcome::Signal(libc::SIGPIPE),
        Some(own) => Outcome::Status(own.code()),
    })
}

/// Puts the agent into all processes, waits, and takes it away; says how each goes on, or nothing, if an
/// agent could not start; and which programs were not followed.
#[cfg(has_mapped)]
fn until_over(
    doors: Vec<super::attach::Door>,
    what: &super::attach::What<'_>,
    keeper: &super::attach::Keeper,
    signals: &super::attach::Signals,
    limit: Option<std::time::Duration>,
) -> (Result<Option<String>, Failure>, Vec<super::summary::NotFollowed>) {
    use super::attach::{Attached, while_answering};

    let (mut all, mut failure) = (Vec::with_capacity(doors.len()), None);
    for door in doors {
        keeper.watch(door.pid());
        match super::attach::attach(door, what) {
            Ok(Some(attached)) => all.push(attached),
            told => {
                failure = Some(told.err());
                break;
            }
        }
    }
    let answers = what.loaded.is_some().then_some((what, keeper));
    let wait = || {
        if failure.is_none() {
            signals.wait(&all, limit)
        }
    };
    let ((), not_followed) = while_answering(answers, None, wait);
    let heritages: Vec<_> = all.iter().filter(|_| what.loaded.is_some()).map(Attached::heritage).collect();
    (leave(all, &heritages, failure), not_followed)
}

/// Takes the agent away from all processes, and from children that have it from them; says how each goes on.
#[cfg(has_mapped)]
fn leave(
    all: Vec<super::attach::Attached>,
    heritages: &[super::attach::Heritage],
    mut failure: Option<Option<Failure>>,
) -> Result<Option<String>, Failure> {
    use super::attach::{Left, leave_children};

    let mut ended = Vec::with_capacity(all.len());
    for attached in all {
        let pid = attached.pid();
        // The others are left all the same.
        match attached.detach() {
            Ok(left) => ended.push(goes_on(pid, &left)),
            Err(error) => failure = Some(Some(error)),
        }
    }
    for (pid, left) in leave_children(heritages) {
        match left {
            // There may be thousands that go on as they were.
            Ok(Left::Nothing | Left::Gone) => {}
            Ok(left) => ended.push(goes_on(pid, &left)),
            Err(error) => failure = Some(Some(error)),
        }
    }
    match failure {
        Some(Some(failure)) => Err(failure),
        Some(None) => Ok(None),
        None => Ok(Some(ended.join(", "))),
    }
}

/// What has become of a process.
#[cfg(has_mapped)]
fn goes_on(pid: libc::pid_t, left: &super::attach::Left) -> String {
    use super::attach::Left;

    match left {
        Left::Gone => format!("(process {pid}) has ended"),
        Left::Nothing => format!("(process {pid}) goes on as it was"),
        Left::Memory(why) => format!("(process {pid}) goes on, with memory of `probe`'s: {why}"),
        Left::Probes(why) => format!("(process {pid}) goes on with its probes: {why}"),
    }
}
