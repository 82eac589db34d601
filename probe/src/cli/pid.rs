//! `probe trace --pid`: a program that runs already.

use super::args::Trace;
use super::failure::{Failure, failed};
use super::trace::Outcome;

/// Traces process `pid` until it ends, the time is over, or a signal comes.
///
/// # Errors
/// Bad input, or the process cannot be traced; it goes on as before.
#[cfg(not(has_mapped))]
pub(super) fn run(_args: &Trace, _pid: i32) -> Result<Outcome, Failure> {
    Err(failed("this `probe` has no agent for programs that run already: it has one on x86-64 with glibc"))
}

/// Traces process `pid` until it ends, the time is over, or a signal comes.
///
/// # Errors
/// Bad input, or the process cannot be traced; it goes on as before.
#[cfg(has_mapped)]
pub(super) fn run(args: &Trace, pid: i32) -> Result<Outcome, Failure> {
    use super::attach::{self, Door, Left, What};
    use super::consumer::Consumer;
    use super::open::FileId;
    use super::{launch, query, trace};
    use crate::wire::MapRoom;
    use std::sync::atomic::{AtomicBool, Ordering};

    let mut maps = MapRoom::default();
    let (queries, plans) = query::queries(&args.clauses, &mut maps)?;
    let agent =
        crate::MAPPED_AGENT.ok_or_else(|| failed("this `probe` has no agent for running programs"))?;
    let follows = queries.iter().any(|query| query.definition.is_return());
    let door = Door::of(pid, follows)?;
    let sink = trace::sink(args, &queries)?;
    let (region, region_fd) = trace::region(args, &plans, &maps)?;
    region.read_here();
    let region_id = FileId::of(&region_fd).map_err(Failure::new)?;
    let consumer = Consumer::new(region, region_id, queries, sink, args.every);
    let done = AtomicBool::new(false);
    let (left, verdict) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| consumer.run(&done));
        let what = What { agent, region, path: &launch::path_of(&region_fd), follows };
        let left = attach::attach(door, &what).and_then(|attached| {
            attached
                .map(|attached| {
                    attached.wait(args.duration);
                    attached.detach()
                })
                .transpose()
        });
        done.store(true, Ordering::Release);
        region.wake_now();
        (left, reader.join())
    });
    let left = left?;
    let mut verdict = verdict.map_err(|_| failed("the reader of events has failed"))?;
    if let Some(error) = verdict.failure.take() {
        return Err(if error.text.is_empty() { Failure::new(error.sentence) } else { error.into() });
    }
    let Some(left) = left.filter(|_| verdict.is_ready) else {
        return Err(failed(format!("the agent did not start in process {pid}, so nothing was traced")));
    };
    verdict.summary.ended = match left {
        Left::Gone => format!("(process {pid}) has ended"),
        Left::Nothing => format!("(process {pid}) goes on as it was"),
        Left::Memory(why) => format!("(process {pid}) goes on, with memory of `probe`'s: {why}"),
        Left::Probes(why) => format!("(process {pid}) goes on with its probes: {why}"),
    };
    Ok(match trace::own_status(&mut verdict) {
        None => Outcome::Signal(libc::SIGPIPE),
        Some(own) => Outcome::Status(own.code()),
    })
}
