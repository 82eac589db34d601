//! What comes before the first hit: definitions become places, and places probes, in one batch.

use super::objects::{self, Loaded};
use super::places::{Target, targets_of};
use super::plant::{self, Unusable};
use super::process::{self, Agent, Reporter};
use super::rule::{self, Rule};
use super::{confined, debuggers, exec, later, lent, masks, stacks};
use crate::def::{Definition, Glob};
#[cfg(feature = "mapped")]
use crate::wire::Region;
use crate::wire::{Meta, Plan};
use probe_host_linux::{Indirect, probes};

/// Whether a definition is an error if its object is not loaded and nothing says that it will be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is an error.
    Error,
    /// They wait for it.
    LeftOut,
}

/// Starts the library, and plants what is defined.
///
/// # Errors
/// The first definition that cannot be used, or why nothing can be.
pub(super) fn start(agent: &'static Agent, reporter: &Reporter, missing: Missing) -> Result<(), Unusable> {
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let started =
        Meta::Started { image: agent.image, pid: std::process::id(), program: program.display().to_string() };
    reporter.send(&started);
    let loaded = objects::loaded();
    loaded.iter().for_each(|object| reporter.send(&object.record(agent.image)));
    stacks::note_told(&loaded);
    let general = |sentence: String| Unusable { definition: usize::MAX, span: (0, 0), sentence };
    // The program's standard error is its own.
    probe_host_linux::set_log(|_message| {});
    probe_host_linux::start().map_err(|error| general(error.to_string()))?;
    // Until the end of the constructor: planting calls functions of libc that have a probe by then.
    process::mute();
    let definitions = definitions(agent).map_err(general)?;
    // With -f, a definition may be meant for a program that is executed later.
    let missing = if agent.follow { Missing::LeftOut } else { missing };
    plant_all(agent, reporter, definitions, missing)
}

/// Reads what [`start`] will read of the objects that definitions name; `false`: they cannot be told.
#[cfg(feature = "mapped")]
pub(super) fn read_ahead(region: &Region) -> bool {
    let Some(plans) = Plan::decode_all(region.config()) else { return false };
    let objects = objects::loaded();
    // `None`: any object; an object: `None`, the program; its name.
    let mut wanted: Vec<Option<Option<String>>> = Vec::new();
    for Plan { definition, .. } in plans {
        let Ok(definition) = Definition::parse(&definition, plant::registers()) else { return false };
        let Some(object) = definition.object else {
            wanted.push(None);
            continue;
        };
        let found = objects::meant(&objects, &object);
        wanted.extend(found.iter().map(|found| Some((!found.is_program).then(|| found.name.clone()))));
    }
    probe_host_linux::guard::read_ahead(&|module| {
        wanted.iter().any(|wanted| wanted.as_ref().is_none_or(|wanted| wanted.as_deref() == module))
    });
    true
}

/// The places of all definitions, and the numbers of those that wait for objects to come.
fn places_of(
    objects: &[Loaded],
    definitions: &[Definition],
    missing: Missing,
) -> Result<(Vec<Target>, Vec<usize>), Unusable> {
    let (mut targets, mut waiting) = (Vec::new(), Vec::new());
    for (number, definition) in definitions.iter().enumerate() {
        let found = targets_of(objects, number, definition, Indirect::Resolve);
        match found.map_err(|(span, sentence)| Unusable { definition: number, span, sentence }) {
            Ok(found) => {
                targets.extend(found);
                if definition.object.as_deref().is_some_and(Glob::is_pattern) {
                    // More may match that comes later.
                    waiting.push(number);
                }
            }
            Err(Unusable { span: (0, 0), sentence, .. }) => {
                let may_come = |wanted: &String| objects::can_come_later(objects, wanted);
                if missing == Missing::LeftOut || definition.object.as_ref().is_some_and(may_come) {
                    waiting.push(number);
                } else if missing == Missing::Error {
                    return Err(Unusable { definition: number, span: definition.place_span, sentence });
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok((targets, waiting))
}

/// Plants all definitions and tells the command about every point, all or nothing. Definitions of objects
/// that are not loaded yet are left to [`later`].
///
/// # Errors
/// The first definition that cannot be used.
fn plant_all(
    agent: &'static Agent,
    reporter: &Reporter,
    definitions: Vec<Definition>,
    missing: Missing,
) -> Result<(), Unusable> {
    let objects = objects::loaded();
    let (mut targets, waiting) = places_of(&objects, &definitions, missing)?;
    let guard = probe_host_linux::guard::probes();
    if cfg!(feature = "mapped") && guard.is_empty() {
        let sentence =
            "its C library's system calls are not known, so that its signals cannot be seen to".into();
        return Err(Unusable { definition: usize::MAX, span: (0, 0), sentence });
    }
    masks::note_guard(&guard);
    plant::check(agent, reporter, &definitions, &mut targets)?;
    if targets.is_empty() && waiting.is_empty() {
        return Ok(());
    }
    let is_guarded = !guard.is_empty();
    let mut own: Vec<_> = guard.into_iter().chain(later::probe(&waiting, is_guarded)).collect();
    own.extend(lent::probes_on_makers());
    own.extend(confined::probes_on_functions());
    #[cfg(feature = "mapped")]
    own.extend(super::waits::probes_on_functions());
    // Programs are executed with signals blocked, where a breakpoint needs the guard.
    let on_executions = if is_guarded { exec::probes_on_functions() } else { Vec::new() };
    own.extend(debuggers::probes_on_functions(!on_executions.is_empty()));
    own.extend(on_executions);
    // A hit by a jump leaves signals open, which only the guard lets wait for its end.
    probes().jumps().set_automatic((is_guarded && !agent.no_jumps).into());
    if is_guarded {
        probe_host_linux::signals::adopt_mask();
    }
    plant::group(agent, reporter, &definitions, &targets, own)
        .inspect_err(|_| probe_host_linux::signals::give_mask_back())?;
    if is_guarded {
        // The kernel refuses no action that it has taken before.
        let _ = probe_host_linux::signals::defer_asynchronous();
        masks::note_planted();
    }
    later::start(agent, definitions, waiting, &objects);
    Ok(())
}

/// The definitions, as the command has checked them already; their rules are known from here on.
fn definitions(agent: &Agent) -> Result<Vec<Definition>, String> {
    let plans = Plan::decode_all(agent.region.config()).ok_or("the plans of the probes are garbled")?;
    let (mut definitions, mut rules) = (Vec::with_capacity(plans.len()), Vec::with_capacity(plans.len()));
    for Plan { definition, stack, end, rule } in plans {
        let mut definition =
            Definition::parse(&definition, plant::registers()).map_err(|error| error.sentence)?;
        definition = definition.with_end(end);
        if stack != 0 {
            definition = definition.with_stack(stack as usize);
            stacks::start();
        }
        rules.push(
            rule.map(|rule| Rule::new(rule, &definition, plant::registers(), &agent.region, agent.image))
                .transpose()?,
        );
        definitions.push(definition);
    }
    rule::start(rules);
    Ok(definitions)
}

/// Tells the command why.
pub(super) fn report(agent: &Agent, reporter: &Reporter, unusable: Unusable) {
    let Unusable { definition, span, sentence } = unusable;
    let failed = Meta::Failed {
        image: agent.image,
        definition: u32::try_from(definition).unwrap_or(u32::MAX),
        span: (span.0 as u32, span.1 as u32),
        sentence,
    };
    reporter.send(&failed);
}
