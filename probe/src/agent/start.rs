//! The constructor: everything that happens before the first instruction of the program's own objects.
//!
//! The agent is linked with `-z initfirst` (DF_1_INITFIRST), so the dynamic linker calls its constructor
//! before those of all other objects, libc's included, and before the program's DT_PREINIT_ARRAY. By then
//! everything has been relocated, and libc can make system calls, has thread-local storage and its loader's
//! services; only the variables that its own constructor sets (`environ`) are missing. Code that runs earlier
//! is not seen: the dynamic linker itself with the functions that it calls (its `malloc`), and the resolvers
//! of indirect functions. Only one object can be first: where another one asks to be (libpthread before glibc
//! 2.34), that one is.

use super::places::targets_of;
use super::plant::{self, Unusable};
use super::process::{self, Agent, Reporter};
use super::rule::{self, Rule};
#[cfg(not(feature = "mapped"))]
use super::{clock, environment, hooks, quiet, runner};
use super::{confined, debuggers, exec, later, lent, masks, objects};
use crate::def::Definition;
#[cfg(not(feature = "mapped"))]
use crate::wire::Region;
use crate::wire::{Meta, Plan};
use probe_host_linux::{Indirect, probes};
#[cfg(not(feature = "mapped"))]
use std::ffi::c_char;
#[cfg(not(feature = "mapped"))]
use std::ffi::c_int;

#[cfg(not(feature = "mapped"))]
/// The linker's list of constructors: run by the dynamic linker before `main`, and by it alone.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = constructor;

#[cfg(not(feature = "mapped"))]
/// The list of destructors: run by `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

#[cfg(not(feature = "mapped"))]
/// The destructor that runs last: the object's own clean-up (`__cxa_finalize`) lies between the two.
#[used]
#[unsafe(link_section = ".fini_array.00001")]
static LAST_DESTRUCTOR: extern "C" fn() = last_destructor;

/// The exit status of a process that is ended before its `main`.
#[cfg(not(feature = "mapped"))]
const FAILED: c_int = 2;

/// Whether a definition is an error if its object is not loaded and nothing says that it will be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is an error.
    Error,
    /// They wait for it.
    LeftOut,
}

#[cfg(not(feature = "mapped"))]
unsafe extern "C" fn constructor(_argc: c_int, _argv: *mut *mut c_char, variables: *mut *mut c_char) {
    let _errno = process::Errno::keep();
    // SAFETY: the dynamic linker passes the program's environment.
    let Some(path) = (unsafe { environment::region(variables) }) else { return };
    let Ok(region) = Region::open(path) else { return };
    // SAFETY: what libc's own constructor will do a moment later, with the same pointer; no other thread
    // exists.
    unsafe { environment::publish(variables) };
    if !region.flags().follow {
        // SAFETY: as above; the program has not started, so nobody else reads it.
        unsafe { environment::take_out(variables) };
    }
    let image = region.new_image();
    let is_first = image == 1;
    if debuggers::has_debugger(&region, image) {
        return;
    }
    let Ok(agent) = process::start(Agent::new(region, image)) else { return };
    clock::start();
    confined::start();
    hooks::start();
    quiet::start();
    runner::start();
    let reporter = Reporter::new(region);
    match start(agent, &reporter, if is_first { Missing::Error } else { Missing::LeftOut }) {
        Ok(()) => reporter.send(&Meta::Ready(image)),
        Err(unusable) if is_first => fail(agent, &reporter, unusable),
        // An executed child that does not have what the definitions want runs untraced.
        Err(_) => {}
    }
    drop(reporter);
    process::unmute();
}

#[cfg(not(feature = "mapped"))]
extern "C" fn destructor() {
    plant::publish_all();
    process::mute();
}

#[cfg(not(feature = "mapped"))]
extern "C" fn last_destructor() {
    process::unmute();
}

pub(super) fn start(agent: &'static Agent, reporter: &Reporter, missing: Missing) -> Result<(), Unusable> {
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let started =
        Meta::Started { image: agent.image, pid: std::process::id(), program: program.display().to_string() };
    reporter.send(&started);
    objects::loaded().iter().for_each(|object| reporter.send(&object.record(agent.image)));
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
    let (mut targets, mut waiting) = (Vec::new(), Vec::new());
    for (number, definition) in definitions.iter().enumerate() {
        let found = targets_of(&objects, number, definition, Indirect::Resolve);
        match found.map_err(|(span, sentence)| Unusable { definition: number, span, sentence }) {
            Ok(found) => targets.extend(found),
            Err(Unusable { span: (0, 0), sentence, .. }) => {
                let may_come = |wanted: &String| objects::can_come_later(&objects, wanted);
                if missing == Missing::LeftOut || definition.object.as_ref().is_some_and(may_come) {
                    waiting.push(number);
                } else if missing == Missing::Error {
                    return Err(Unusable { definition: number, span: definition.place_span, sentence });
                }
            }
            Err(error) => return Err(error),
        }
    }
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
    later::start(agent, definitions, waiting);
    Ok(())
}

/// The definitions, as the command has checked them already; their rules are known from here on.
fn definitions(agent: &Agent) -> Result<Vec<Definition>, String> {
    let plans = Plan::decode_all(agent.region.config()).ok_or("the plans of the probes are garbled")?;
    let (mut definitions, mut rules) = (Vec::with_capacity(plans.len()), Vec::with_capacity(plans.len()));
    for Plan { definition, rule } in plans {
        let definition =
            Definition::parse(&definition, plant::registers()).map_err(|error| error.sentence)?;
        rules.push(
            rule.map(|rule| Rule::new(rule, &definition, plant::registers(), &agent.region)).transpose()?,
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

/// Tells the command why, and ends the process before its `main`.
#[cfg(not(feature = "mapped"))]
fn fail(agent: &Agent, reporter: &Reporter, unusable: Unusable) -> ! {
    report(agent, reporter, unusable);
    // SAFETY: ends the process; nothing of the program's has run that wants to be tidied up.
    unsafe { libc::_exit(FAILED) }
}
