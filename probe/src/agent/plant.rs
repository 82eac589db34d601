//! From definitions to planted probes.

use super::emit::{Entered, Point, Published};
use super::fetch::Plan;
use super::masks;
use super::objects::{self, Loaded};
use super::process::{self, Agent, Reporter};
use crate::def::{Definition, Kind, MAX_ARGUMENT, Place as Wanted, Source, near_matches};
use crate::wire::{Meta, Point as PointRecord};
use probe_core::error::RegisterError;
use probe_core::host::Host;
use probe_core::{AnyProbe, CodeAddr, Place};
use probe_host_linux::{Kprobe, Kretprobe, LinuxProcess, Native, Probe, Regs, probes};
use std::collections::HashSet;
use std::sync::OnceLock;

/// How many calls a return probe follows at the same time if its definition does not say: recursion and threads.
const MAX_ACTIVE: i32 = 64;
/// The same for a probe that a pattern planted, one of maybe thousands.
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

/// One place to be planted.
struct Target {
    definition: usize,
    at: CodeAddr,
    symbol: String,
    offset: u64,
    object: String,
    is_one_of_many: bool,
}

/// Whether definitions whose object is not loaded are left out instead of being an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is an error.
    Error,
    /// They are left out.
    LeftOut,
}

/// The planted probes and their points; they stay for good.
static PLANTED: OnceLock<Vec<(Probe, &'static Point)>> = OnceLock::new();

/// Plants all definitions and tells the command about every point, all or nothing.
///
/// # Errors
/// The first definition that cannot be used.
pub(super) fn all(
    agent: &'static Agent,
    reporter: &Reporter,
    definitions: &[Definition],
    missing: Missing,
) -> Result<(), Unusable> {
    let objects = objects::loaded();
    let mut targets = Vec::new();
    for (number, definition) in definitions.iter().enumerate() {
        let found = targets_of(&objects, number, definition).map_err(|(span, sentence)| Unusable {
            definition: number,
            span,
            sentence,
        });
        match found {
            Ok(found) => targets.extend(found),
            Err(Unusable { span: (0, 0), .. }) if missing == Missing::LeftOut => {}
            Err(Unusable { span: (0, 0), sentence, .. }) => {
                return Err(Unusable { definition: number, span: definition.place_span, sentence });
            }
            Err(error) => return Err(error),
        }
    }
    check(agent, reporter, definitions, &mut targets)?;
    if targets.is_empty() {
        return Ok(());
    }
    let (mut probes, points) = build(agent, definitions, &targets)?;
    probes.extend(masks::probes(&objects));
    // The command must know every point before its first event.
    for (target, point) in targets.iter().zip(&points) {
        announce(agent, reporter, target, point);
    }
    let planted = probe_host_linux::probes().register_all(probes).map_err(|error| {
        // What comes after the targets are the agent's own, whose failure is nobody's fault but has no better place.
        let target = &targets[error.index.min(targets.len() - 1)];
        let definition = &definitions[target.definition];
        Unusable {
            definition: target.definition,
            span: definition.place_span,
            sentence: sentence(&error.error, target),
        }
    })?;
    let mut planted = planted.into_iter();
    let _ = PLANTED.set(planted.by_ref().zip(points).collect());
    planted.for_each(|own| {
        own.leak();
    });
    Ok(())
}

/// Adds what handlers have not yet told to the shared counters. Called when the process or its image ends.
pub(super) fn publish_all() {
    let Some(planted) = PLANTED.get() else { return };
    let is_traced = process::agent().is_some_and(|agent| process::traced_process(agent).is_some());
    for (probe, point) in planted.iter().filter(|_| is_traced) {
        point.publish(probe.counters());
    }
}

type Blamed = ((usize, usize), String);

/// The places that a definition means. A span of (0, 0): its object is not loaded.
fn targets_of(objects: &[Loaded], number: usize, definition: &Definition) -> Result<Vec<Target>, Blamed> {
    let object = match &definition.object {
        None => None,
        Some(wanted) => {
            Some(objects::find(objects, wanted).ok_or_else(|| ((0, 0), no_object(objects, wanted)))?)
        }
    };
    let blame = |sentence: String| (definition.place_span, sentence);
    match &definition.place {
        Wanted::Symbol { name, offset } => {
            one(objects, object, number, (name, *offset)).map(|target| vec![target]).map_err(blame)
        }
        Wanted::Glob(glob) => {
            let targets = matching(objects, object, number, &|name| glob.matches(name));
            if targets.is_empty() {
                return Err(blame(format!("no function matches `{}`{}", glob.as_str(), within(object))));
            }
            Ok(targets)
        }
        Wanted::FileOffset(offset) => {
            let object = object.ok_or_else(|| blame("a file offset needs an object".into()))?;
            let at = object.addr_of_offset(*offset);
            let at =
                at.ok_or_else(|| blame(format!("offset {offset:#x} of {} is not loaded", object.name)))?;
            let mut target = Target {
                definition: number,
                at: CodeAddr::new(at),
                symbol: String::new(),
                offset: 0,
                object: object.name.clone(),
                is_one_of_many: false,
            };
            probes().host().symbol_at(target.at, &mut |symbol| {
                target.symbol = symbol.name.to_owned();
                target.offset = (at - symbol.start.as_usize()) as u64;
            });
            Ok(vec![target])
        }
    }
}

/// ` in libc.so.6`, or nothing.
fn within(object: Option<&Loaded>) -> String {
    object.map(|object| format!(" in {}", object.name)).unwrap_or_default()
}

fn no_object(objects: &[Loaded], wanted: &str) -> String {
    let names: Vec<&str> = objects.iter().map(|object| object.name.as_str()).collect();
    let near = near_matches(wanted, names.iter().copied(), 2);
    if near.is_empty() {
        let some = names.iter().take(8).copied().collect::<Vec<_>>().join(", ");
        return format!("no object `{wanted}` is loaded before the program starts; loaded are {some}");
    }
    format!(
        "no object `{wanted}` is loaded before the program starts; did you mean `{}`?",
        near.join("` or `")
    )
}

/// The file name of the object that a symbol belongs to.
fn object_name<'a>(objects: &'a [Loaded], module: Option<&'a str>) -> &'a str {
    match module {
        Some(module) => module,
        None => objects.iter().find(|object| object.is_program).map_or("", |object| &object.name),
    }
}

/// Whether a symbol of `module` belongs to `object`, if one is named.
fn belongs(object: Option<&Loaded>, module: Option<&str>) -> bool {
    object.is_none_or(|object| match module {
        None => object.is_program,
        Some(module) => !object.is_program && object.name == module,
    })
}

/// The one function that a name means.
fn one(
    objects: &[Loaded],
    object: Option<&Loaded>,
    number: usize,
    (name, offset): (&str, u64),
) -> Result<Target, String> {
    let host = probes().host();
    let mut found: Vec<(Target, usize)> = Vec::new();
    host.find_symbols(name, &mut |symbol| {
        let is_known =
            found.iter().any(|(target, _)| target.at == symbol.start.wrapping_add(offset as usize));
        if !belongs(object, symbol.module) || is_known {
            return;
        }
        let entry = if offset == 0 { usize::from(symbol.local_entry) } else { 0 };
        let target = Target {
            definition: number,
            at: symbol.start.wrapping_add(offset as usize).wrapping_add(entry),
            symbol: name.to_owned(),
            offset,
            object: object_name(objects, symbol.module).to_owned(),
            is_one_of_many: false,
        };
        found.push((target, symbol.len_bytes));
    });
    // The program's own symbol hides those of its libraries.
    if object.is_none() && found.len() > 1 {
        let program = object_name(objects, None);
        if found.iter().any(|(target, _)| target.object == program) {
            found.retain(|(target, _)| target.object == program);
        }
    }
    match found.len() {
        0 => Err(no_symbol(object, name)),
        1 => {
            let (target, len) = found.remove(0);
            if offset > 0 && len > 0 && offset >= len as u64 {
                return Err(format!("{name} has {len} bytes, so +{offset:#x} lies outside"));
            }
            Ok(target)
        }
        several => {
            let places: Vec<String> = found
                .iter()
                .map(|(target, _)| format!("{}:{name} at {}", target.object, target.at))
                .collect();
            let places = places.join(", ");
            Err(format!(
                "`{name}` is the name of {several} functions ({places}); name the object, or use a pattern for all"
            ))
        }
    }
}

fn no_symbol(object: Option<&Loaded>, name: &str) -> String {
    let mut names: HashSet<String> = HashSet::new();
    probes().host().for_each_symbol(&mut |symbol, _| {
        if belongs(object, symbol.module) {
            names.insert(symbol.name.to_owned());
        }
    });
    let near = near_matches(name, names.iter().map(String::as_str), 3);
    let hint = match near.as_slice() {
        [] => String::new(),
        near => format!("; did you mean `{}`?", near.join("` or `")),
    };
    format!("there is no function `{name}`{}{hint}", within(object))
}

/// All functions whose name matches, each address once.
fn matching(
    objects: &[Loaded],
    object: Option<&Loaded>,
    number: usize,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Vec<Target> {
    let host = probes().host();
    let mut names: Vec<String> = Vec::new();
    host.for_each_symbol(&mut |symbol, _| {
        if belongs(object, symbol.module) && is_wanted(symbol.name) {
            names.push(symbol.name.to_owned());
        }
    });
    // Of several names of one address the plainest is used.
    names.sort_unstable_by(|a, b| plainness(a).cmp(&plainness(b)).then_with(|| a.cmp(b)));
    names.dedup();
    let (mut targets, mut known) = (Vec::new(), HashSet::new());
    for name in names {
        // Asked by name, so that indirect functions lead to what they stand for.
        host.find_symbols(&name, &mut |symbol| {
            let at = symbol.start.wrapping_add(usize::from(symbol.local_entry));
            if belongs(object, symbol.module) && known.insert(at) {
                targets.push(Target {
                    definition: number,
                    at,
                    symbol: name.clone(),
                    offset: 0,
                    object: object_name(objects, symbol.module).to_owned(),
                    is_one_of_many: true,
                });
            }
        });
    }
    targets
}

/// What is lower for the name that people use: few leading underscores, then short.
fn plainness(name: &str) -> (usize, usize) {
    (name.len() - name.trim_start_matches('_').len(), name.len())
}

/// Asks the core about every place; what a pattern matched and cannot be probed is left out and reported.
fn check(
    agent: &Agent,
    reporter: &Reporter,
    definitions: &[Definition],
    targets: &mut Vec<Target>,
) -> Result<(), Unusable> {
    let mut failed = None;
    let refusals = masks::Refusals::new();
    targets.retain(|target| {
        let refused = |reason: String| {
            reporter.send(&Meta::Refused {
                image: agent.image,
                definition: target.definition as u32,
                symbol: target.symbol.clone(),
                reason,
            });
        };
        let is_return = definitions[target.definition].is_return();
        if let Some(why) = refusals.get(target.at, is_return) {
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
        let error = match probes().explain(&Place::addr(target.at)) {
            Ok(_) => return true,
            Err(error) => error,
        };
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

/// The sentence for a place that cannot be probed, in terms of its symbol.
fn sentence(error: &RegisterError, target: &Target) -> String {
    let place = if target.offset == 0 {
        target.symbol.clone()
    } else {
        format!("{}+{:#x}", target.symbol, target.offset)
    };
    match error {
        RegisterError::InsideInstruction { at, start } => {
            let before = at.offset_from(*start).unsigned_abs() as u64;
            let start = match target.offset.saturating_sub(before) {
                0 => target.symbol.clone(),
                offset => format!("{}+{offset:#x}", target.symbol),
            };
            format!("{place} lies inside an instruction that starts at {start}")
        }
        RegisterError::Refused { refusal, .. } => {
            format!("the instruction at {place} cannot be probed: {refusal}")
        }
        RegisterError::Blacklisted(_) => {
            format!("{place} must not be probed: the probes themselves run through it")
        }
        RegisterError::NotText(_) => format!("{place} is not code"),
        RegisterError::NoSymbolCovers(_) => {
            format!("no symbol covers {place}, so nobody can tell where instructions start there")
        }
        other => format!("{place} cannot be probed: {other}"),
    }
}

/// The reason alone, the same for all places that share it.
fn reason(error: &RegisterError) -> String {
    match error {
        RegisterError::Refused { refusal, .. } => refusal.to_string(),
        RegisterError::Blacklisted(_) => "the probes themselves run through it".into(),
        RegisterError::Undecodable { .. } => "its instructions cannot be decoded".into(),
        RegisterError::NotText(_) => "it is not code".into(),
        other => other.code().into(),
    }
}

type Built = (Vec<AnyProbe<Native>>, Vec<&'static Point>);

/// Builds the probes and their points.
fn build(agent: &'static Agent, definitions: &[Definition], targets: &[Target]) -> Result<Built, Unusable> {
    let (mut probes, mut points) = (Vec::with_capacity(targets.len()), Vec::with_capacity(targets.len()));
    for (number, target) in targets.iter().enumerate() {
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
        let durations = if definition.is_return() {
            Some(agent.region.alloc_durations().ok_or_else(full)?)
        } else {
            None
        };
        let point: &'static Point = Box::leak(Box::new(Point {
            agent,
            number: number as u32,
            counters: agent.region.counters(counters).ok_or_else(full)?,
            durations: durations.and_then(|offset| agent.region.durations(offset)),
            most: Point::most_of(&plans),
            entry_arguments: entry_arguments(&plans),
            plans,
            published: Published::default(),
            offsets: (counters, durations.unwrap_or(u32::MAX)),
        }));
        probes.push(probe(point, definition.kind, target));
        points.push(point);
    }
    Ok((probes, points))
}

/// The arguments that must be kept from the entry, one bit each.
fn entry_arguments(plans: &[Plan]) -> u32 {
    const { assert!(MAX_ARGUMENT <= 32) };
    plans.iter().filter_map(Plan::entry_argument).fold(0, |bits, index| bits | 1 << index)
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

fn probe(point: &'static Point, kind: Kind, target: &Target) -> AnyProbe<Native> {
    let place = Place::addr(target.at);
    match kind {
        Kind::Hit => Kprobe::at(place).pre(move |hit| point.hit(hit)).into(),
        Kind::Return { max_active } => {
            let default = if target.is_one_of_many { MAX_ACTIVE_OF_MANY } else { MAX_ACTIVE };
            let max_active = max_active.and_then(|calls| i32::try_from(calls).ok()).unwrap_or(default);
            Kretprobe::on(place)
                .max_active(max_active)
                .entry(move |call| point.enter(call))
                .exit(move |ret, entered: Entered| point.leave(ret, &entered))
                .into()
        }
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
