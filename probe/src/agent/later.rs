//! Objects that the program loads later (`dlopen`). C libraries of other namespaces get the guard.
//! Definitions wait, and are planted before the first function of such an object has run, its constructors
//! included.
//!
//! The loader calls an empty function of its own, `_dl_debug_state`, whenever its list of objects has
//! changed: the debuggers' rendezvous (`r_brk` of `struct r_debug` in `<link.h>`). A probe there sends the
//! thread into [`rendezvous`] instead, outside of any handler, from where it returns to the loader. The
//! thread holds the loader's lock, so that it is the only one here. `dlopen` itself stays as it is: it looks
//! at its caller.
//!
//! At that time the object is mapped but not relocated, so that its indirect functions (`STT_GNU_IFUNC`)
//! cannot be asked for the code they stand for. Those are planted at the loader's next call.

use super::masks;
use super::objects::{self, Loaded};
use super::places::{Target, left_out, targets_in};
use super::plant::{self, Unusable};
use super::process::{self, Agent, Muted, Reporter};
use super::stacks;
use crate::def::{Definition, Glob};
use crate::wire::Meta;
use probe_core::handler::Flow;
use probe_core::{AnyProbe, Place};
use probe_host_linux::{Hit, Indirect, Kprobe, Native, guard, probes};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// A definition that names an object.
struct Waiting {
    /// The definition's number.
    number: usize,
    /// Its objects at the last look.
    seen: Vec<Seen>,
}

/// An object that a definition means.
struct Seen {
    /// Where it is loaded.
    range: (usize, usize),
    /// Whether nothing is left to be done for it.
    is_done: bool,
}

/// What waits.
struct Later {
    agent: &'static Agent,
    definitions: Vec<Definition>,
    waiting: Mutex<Vec<Waiting>>,
    state: Option<State>,
}

static LATER: OnceLock<Later> = OnceLock::new();

/// The probe on the loader's rendezvous, if anything waits. Where the guard is, a C library of another
/// namespace may always come (`dlmopen`).
pub(super) fn probe(waiting: &[usize], is_guarded: bool) -> Option<AnyProbe<Native>> {
    let divert = |hit: &mut Hit<'_>| {
        probe_host_linux::lead_to(hit.regs_mut(), rendezvous as *const ());
        Flow::Redirected
    };
    let place = loaders_function("_dl_debug_state");
    let can_be = || probes().check_all(&[(place.clone(), false)]).iter().all(Result::is_ok);
    let is_wanted = !waiting.is_empty() || is_guarded && can_be();
    is_wanted.then(|| Kprobe::at(place).pre(divert).without_jump().into())
}

/// A function of the loader's; its name, where the loader's file goes by a name of its own.
fn loaders_function(name: &str) -> Place {
    let is_loader = |module: Option<&str>| module.is_some_and(|module| module.starts_with("ld"));
    let mut place = None;
    probes().host().find_functions_within(&is_loader, name, Indirect::LeftOut, &mut |symbol| {
        place = Some(Place::addr(symbol.start.wrapping_add(usize::from(symbol.local_entry))));
    });
    place.unwrap_or_else(|| Place::symbol(name))
}

/// `RT_CONSISTENT`: the list of objects is complete.
const CONSISTENT: u32 = 0;

/// The loader's `_r_debug.r_state`.
struct State(usize);

impl State {
    fn find() -> Option<Self> {
        let (addr, len) = probe_host_linux::probes().host().data_symbol("_r_debug")?;
        // Behind the version, the list and the function, each of one word.
        let offset = 3 * size_of::<usize>();
        (offset + size_of::<u32>() <= len).then_some(Self(addr + offset))
    }

    fn is_consistent(&self) -> bool {
        // SAFETY: a word of the loader's own structure, which stays for good and which this thread's loader
        // changes.
        unsafe { (self.0 as *const u32).read_volatile() == CONSISTENT }
    }
}

/// Begins to wait. The program has not started yet; what it has loaded is done.
pub(super) fn start(
    agent: &'static Agent,
    definitions: Vec<Definition>,
    numbers: Vec<usize>,
    loaded: &[Loaded],
) {
    let waiting = numbers.into_iter().map(|number| {
        let seen = meant(&definitions[number], loaded).into_iter();
        let seen = seen.map(|object| Seen { range: object.range(), is_done: true }).collect();
        Waiting { number, seen }
    });
    let waiting = Mutex::new(waiting.collect());
    let _ = LATER.set(Later { agent, definitions, waiting, state: State::find() });
}

/// The objects that a definition means.
fn meant<'a>(definition: &Definition, loaded: &'a [Loaded]) -> Vec<&'a Loaded> {
    definition.object.as_ref().map(|wanted| objects::meant(loaded, wanted)).unwrap_or_default()
}

/// How many threads are planting: they hold locks.
static PLANTING: AtomicU32 = AtomicU32::new(0);

/// Whether a thread is planting probes in what it has loaded.
#[cfg(feature = "mapped")]
pub(super) fn is_planting() -> bool {
    PLANTING.load(Ordering::Relaxed) != 0
}

/// What the loader calls in place of its empty function.
extern "C" fn rendezvous() {
    PLANTING.fetch_add(1, Ordering::Relaxed);
    see_to_changes();
    PLANTING.fetch_sub(1, Ordering::Relaxed);
}

/// Objects have come or gone, or are about to.
fn see_to_changes() {
    let Some(later) = LATER.get() else { return };
    // While objects come or go the list may name some that are not mapped yet, or no longer.
    if later.state.as_ref().is_some_and(|state| !state.is_consistent()) {
        return;
    }
    if process::traced_process(later.agent).is_none() {
        return;
    }
    let _muted = Muted::new();
    probe_host_linux::objects_changed();
    stacks::objects_changed();
    guard_others();
    // The lock is taken in a forked child if a thread of its parent was here.
    let Ok(mut waiting) = later.waiting.try_lock() else { return };
    let loaded = objects::loaded();
    stacks::tell_new(later.agent, &loaded);
    for waiting in waiting.iter_mut() {
        let objects = meant(&later.definitions[waiting.number], &loaded);
        waiting.seen.retain(|seen| objects.iter().any(|object| object.range() == seen.range));
        for object in objects {
            let range = object.range();
            let indirect = match waiting.seen.iter().find(|seen| seen.range == range) {
                None => Indirect::LeftOut,
                Some(seen) if !seen.is_done => Indirect::Resolve,
                Some(_) => continue,
            };
            if indirect == Indirect::LeftOut && !stacks::are_wanted() {
                later.tell(&object.record(later.agent.image));
            }
            let is_done = later.plant(waiting.number, &loaded, object, indirect);
            waiting.seen.retain(|seen| seen.range != range);
            waiting.seen.push(Seen { range, is_done: is_done || indirect == Indirect::Resolve });
        }
    }
}

/// Guards C libraries of other namespaces, before their first function has run.
fn guard_others() {
    if masks::is_planted()
        && let Ok(planted) = probes().register_all(guard::later_probes())
    {
        planted.into_iter().for_each(|probe| {
            probe.leak();
        });
    }
}

impl Later {
    fn tell(&self, meta: &Meta) {
        Reporter::new(self.agent.region).send(meta);
    }

    /// What cannot be planted is left out and reported; the program runs already.
    fn refuse(&self, number: usize, symbol: String, reason: String) {
        self.tell(&Meta::Refused { image: self.agent.image, definition: number as u32, symbol, reason });
    }

    /// Plants one definition in an object that has just been loaded. Returns whether nothing is left to be
    /// done.
    fn plant(&self, number: usize, loaded: &[Loaded], object: &Loaded, indirect: Indirect) -> bool {
        let definition = &self.definitions[number];
        let mut found = targets_in(loaded, Some(object), number, definition, indirect);
        if definition.object.as_deref().is_some_and(Glob::is_pattern) {
            // One that lacks it is not meant.
            let targets = found.unwrap_or_default().into_iter();
            found = Ok(targets.map(|target| Target { is_one_of_many: true, ..target }).collect());
        }
        let targets = found.as_deref().unwrap_or_default();
        let left_out =
            if indirect == Indirect::LeftOut { left_out(object, definition, targets) } else { Vec::new() };
        let mut targets = match found {
            Ok(targets) if targets.is_empty() => return left_out.is_empty(),
            Ok(targets) => targets,
            Err(_) if !left_out.is_empty() => return false,
            Err((_, sentence)) => {
                self.refuse(number, object.name.clone(), sentence);
                return true;
            }
        };
        for symbol in left_out {
            self.refuse(number, symbol, "its code is chosen after the object has been loaded".into());
        }
        let reporter = Reporter::new(self.agent.region);
        let planted = plant::check(self.agent, &reporter, &self.definitions, &mut targets)
            .and_then(|()| plant::group(self.agent, &reporter, &self.definitions, &targets, Vec::new()));
        if let Err(Unusable { sentence, .. }) = planted {
            self.refuse(number, object.name.clone(), sentence);
        }
        true
    }
}
