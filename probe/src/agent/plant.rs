//! From definitions to planted probes.

use super::emit::{Entered, Point, Published};
use super::fetch::Plan;
use super::masks;
use super::places::{Target, reason, sentence};
use super::process::{self, Agent, Reporter};
use super::rule;
use crate::def::{Definition, End, Kind, MAX_ARGUMENT, Source};
use crate::wire::{Meta, Point as PointRecord};
use probe_core::host::Host;
use probe_core::{AnyProbe, Place};
use probe_host_linux::{Kprobe, Kretprobe, LinuxProcess, Native, Probe, Regs, probes};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How many calls a return probe follows at the same time if its definition does not say: recursion and
/// threads.
const MAX_ACTIVE: i32 = 64;
/// The number for a probe that a pattern planted, one of maybe thousands.
const MAX_ACTIVE_OF_MANY: i32 = 16;

/// Why a definition cannot be used.
pub(super) struct Unusable {
    /// The number of the definition.
    pub(super) definition: usize,
    /// The bytes of its text that are to blame.
    pub(super) span: (usize, usize),
    /// One sentence.
    pub(super) sentence: String,
}

/// Probes that were planted together, and their points; they stay for good.
struct Batch {
    planted: Vec<(Probe, &'static Point)>,
    before: Option<&'static Batch>,
}

/// The batch that was planted last.
static NEWEST: AtomicPtr<Batch> = AtomicPtr::new(std::ptr::null_mut());
/// The number of the next point.
static NEXT_POINT: AtomicU32 = AtomicU32::new(0);

fn newest() -> Option<&'static Batch> {
    // SAFETY: null or a batch that was leaked.
    unsafe { NEWEST.load(Ordering::Acquire).as_ref() }
}

/// Plants `targets`, and the agent's own probes, in one batch.
///
/// # Errors
/// The first target that cannot be planted; then none is.
pub(super) fn group(
    agent: &'static Agent,
    reporter: &Reporter,
    definitions: &[Definition],
    targets: &[Target],
    own: Vec<AnyProbe<Native>>,
) -> Result<(), Unusable> {
    let (probes, points) = build(agent, definitions, targets)?;
    // The command must know every point before its first event.
    for (target, point) in targets.iter().zip(&points) {
        announce(agent, reporter, target, point);
    }
    // Neighbours are written together.
    let mut wanted: Vec<_> = targets.iter().zip(probes).zip(points).collect();
    wanted.sort_by_key(|((target, _), _)| target.at);
    let (wanted, points): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
    let (targets, probes): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
    // The agent's own come first, so that of several on one place they are hit last: they may lead the
    // program elsewhere.
    let own_count = own.len();
    let probes: Vec<_> = own.into_iter().chain(probes).collect();
    let planted = probe_host_linux::probes().register_all(probes).map_err(|error| {
        // A failure of the agent's own probes is no definition's fault, but has no better place.
        let target = error.index.checked_sub(own_count).and_then(|index| targets.get(index));
        let Some(target) = target.or(targets.last()) else {
            return Unusable { definition: usize::MAX, span: (0, 0), sentence: error.error.to_string() };
        };
        let definition = &definitions[target.definition];
        Unusable {
            definition: target.definition,
            span: definition.place_span,
            sentence: sentence(&error.error, target),
        }
    })?;
    let mut planted = planted.into_iter();
    planted.by_ref().take(own_count).for_each(|own| {
        own.leak();
    });
    let batch = Batch { planted: planted.zip(points).collect(), before: newest() };
    // Written by one thread at a time: the constructor, then whoever holds the loader's lock.
    NEWEST.store(Box::leak(Box::new(batch)), Ordering::Release);
    Ok(())
}

/// Adds the misses that handlers have not yet published to the shared counters. Called when the process or
/// its image ends.
pub(super) fn publish_all() {
    if process::agent().is_none_or(|agent| process::traced_process(agent).is_none()) {
        return;
    }
    for batch in std::iter::successors(newest(), |batch| batch.before) {
        batch.planted.iter().for_each(|(probe, point)| point.publish(probe.misses()));
    }
}

/// How many calls were followed and have never returned: nobody knows whether they will.
#[cfg(feature = "mapped")]
pub(super) fn abandoned() -> u64 {
    let batches = std::iter::successors(newest(), |batch| batch.before);
    batches.flat_map(|batch| &batch.planted).map(|(probe, _)| probe.counters().abandoned).sum()
}

/// Asks the core about every place; what a pattern matched and cannot be probed is left out and reported.
pub(super) fn check(
    agent: &Agent,
    reporter: &Reporter,
    definitions: &[Definition],
    targets: &mut Vec<Target>,
) -> Result<(), Unusable> {
    let mut failed = None;
    let mut objects: Vec<&str> = targets.iter().map(|target| target.object.as_str()).collect();
    // Those of a pattern come one after the other.
    objects.dedup();
    let refusals = masks::Refusals::new(&|module| objects.contains(&module));
    let is_return = |target: &Target| definitions[target.definition].is_return();
    let place = |target: &Target| (Place::addr(target.at), is_return(target));
    let mut checked = probes().check_all(&targets.iter().map(place).collect::<Vec<_>>()).into_iter();
    targets.retain(|target| {
        let checked = checked.next();
        let refused = |reason: String| {
            reporter.send(&Meta::Refused {
                image: agent.image,
                definition: target.definition as u32,
                symbol: target.symbol.clone(),
                reason,
            });
        };
        if let Some(why) = refusals.get(target.at, is_return(target)) {
            if target.is_one_of_many {
                refused(why.to_owned());
            } else if failed.is_none() {
                failed = Some(Unusable {
                    definition: target.definition,
                    span: definitions[target.definition].place_span,
                    sentence: format!("{} must not be probed: {why}", target.symbol),
                });
            }
            return false;
        }
        let Some(Err(error)) = checked else { return true };
        if target.is_one_of_many {
            refused(reason(&error));
        } else if failed.is_none() {
            failed = Some(Unusable {
                definition: target.definition,
                span: definitions[target.definition].place_span,
                sentence: sentence(&error, target),
            });
        }
        false
    });
    failed.map_or(Ok(()), Err)
}

type Built = (Vec<AnyProbe<Native>>, Vec<&'static Point>);

/// Builds the probes and their points.
fn build(agent: &'static Agent, definitions: &[Definition], targets: &[Target]) -> Result<Built, Unusable> {
    let (mut probes, mut points) = (Vec::with_capacity(targets.len()), Vec::with_capacity(targets.len()));
    for target in targets {
        let definition = &definitions[target.definition];
        let unusable = |span, sentence| Unusable { definition: target.definition, span, sentence };
        let plans: Box<[Plan]> = definition
            .args
            .iter()
            .map(|argument| {
                let symbol = match &argument.fetch.source {
                    Source::Symbol { name, .. } => data_symbol(name).ok_or_else(|| {
                        unusable(argument.span, format!("there is no symbol `{name}` in the loaded objects"))
                    })?,
                    _ => 0,
                };
                Ok(Plan::new(argument.clone(), symbol))
            })
            .collect::<Result<_, _>>()?;
        let full =
            || unusable(definition.place_span, "there is no room for the counters of so many places".into());
        let counters = agent.region.alloc_counters().ok_or_else(full)?;
        let durations =
            if definition.is_timed() { Some(agent.region.alloc_durations().ok_or_else(full)?) } else { None };
        let rule = rule::of(target.definition);
        let point: &'static Point = Box::leak(Box::new(Point {
            agent,
            number: NEXT_POINT.fetch_add(1, Ordering::Relaxed),
            counters: agent.region.counters(counters).ok_or_else(full)?,
            durations: durations.and_then(|offset| agent.region.durations(offset)),
            most: Point::most_of(&plans),
            entry_arguments: entry_arguments(plans.iter().chain(rule.iter().flat_map(|rule| &rule.extras))),
            plans,
            rule,
            is_aggregate: rule.is_some_and(rule::Rule::is_aggregate),
            is_end: definition.end.is_some(),
            published: Published::default(),
            offsets: (counters, durations.unwrap_or(u32::MAX)),
        }));
        probes.push(match definition.end {
            None => probe(point, definition.kind, target),
            Some(end) => probe_at_end(point, definition.kind, end, target),
        });
        points.push(point);
    }
    Ok((probes, points))
}

/// The arguments that must be kept from the entry, one bit each.
fn entry_arguments<'a>(plans: impl Iterator<Item = &'a Plan>) -> u32 {
    const { assert!(MAX_ARGUMENT <= 32) };
    plans.filter_map(Plan::entry_argument).fold(0, |bits, index| bits | 1 << index)
}

/// The address of a symbol: data first, then code.
fn data_symbol(name: &str) -> Option<usize> {
    let host: &LinuxProcess = probes().host();
    if let Some((addr, _)) = host.data_symbol(name) {
        return Some(addr);
    }
    let mut found = None;
    host.find_symbols(name, &mut |symbol| {
        found.get_or_insert(symbol.start.as_usize());
    });
    found
}

/// A probe where a time between two places begins or ends.
fn probe_at_end(point: &'static Point, kind: Kind, end: End, target: &Target) -> AnyProbe<Native> {
    let place = Place::addr(target.at);
    match kind {
        Kind::Hit => Kprobe::at(place).pre(move |hit| point.hit_end(hit, end)).into(),
        Kind::Return { max_active } => followed(place, max_active, target)
            .entry(move |call| point.enter(call))
            .exit(move |ret, entered: Entered| point.leave_end(ret, entered, end))
            .into(),
    }
}

/// A return probe without handlers.
fn followed(place: Place, max_active: Option<u32>, target: &Target) -> Kretprobe {
    let default = if target.is_one_of_many { MAX_ACTIVE_OF_MANY } else { MAX_ACTIVE };
    let is_said = max_active.is_some();
    let max_active = max_active.and_then(|calls| i32::try_from(calls).ok()).unwrap_or(default);
    // What a definition says is kept.
    let most = if is_said { 0 } else { probe_core::limits::MAX_ACTIVE };
    Kretprobe::at(place).max_active(max_active).grow_to(most)
}

fn probe(point: &'static Point, kind: Kind, target: &Target) -> AnyProbe<Native> {
    let place = Place::addr(target.at);
    match kind {
        Kind::Hit => Kprobe::at(place).pre(move |hit| point.hit(hit)).into(),
        Kind::Return { max_active } => followed(place, max_active, target)
            .entry(move |call| point.enter(call))
            .exit(move |ret, entered: Entered| point.leave(ret, entered))
            .into(),
    }
}

fn announce(agent: &Agent, reporter: &Reporter, target: &Target, point: &Point) {
    let record = PointRecord {
        point: point.number,
        definition: target.definition as u32,
        addr: target.at.as_usize() as u64,
        offset: target.offset,
        counters: point.offsets.0,
        durations: point.offsets.1,
        symbol: target.symbol.clone(),
        object: target.object.clone(),
    };
    reporter.send(&Meta::Point(agent.image, record));
}

/// The registers that definitions may name.
pub(super) fn registers() -> &'static [(&'static str, usize)] {
    <Regs as probe_core::arch::Regs>::names()
}
