//! Recorded stacks as other programs draw them: a line for each way, and how much went it.

use super::failure::Failure;
use super::foreign::Foreign;
use super::saved::{self, Saved};
use super::value::{self, StackEnd};
use crate::def::Scalar;
use crate::file::{self, Event, Item};
use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// How many ways are added up at once; beyond that a way may have several lines.
const MOST_WAYS: usize = if cfg!(target_pointer_width = "64") { 1 << 18 } else { 1 << 15 };

/// What makes a way wider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// That it was gone.
    Count,
    /// How long the call took.
    Took,
    /// An argument.
    Argument(String),
}

impl Weight {
    /// From the command line.
    pub(super) fn new(text: &str) -> Self {
        match text {
            "count" => Self::Count,
            "took" | "$took" => Self::Took,
            argument => Self::Argument(argument.to_owned()),
        }
    }

    fn of(&self, event: &Event<'_>) -> Option<u64> {
        match self {
            Self::Count => Some(1),
            Self::Took => event.duration_ns,
            Self::Argument(name) => value::unsigned_argument(&event.probe.args, event.values, name),
        }
    }
}

/// Whether a record has stacks.
pub(super) fn are_in(saved: &Saved<'_>) -> bool {
    let mut args = saved.reader().probes().iter().flat_map(|probe| &probe.args);
    args.any(|arg| arg.ty.scalar == Scalar::Stack)
}

/// A name as a frame: neither `;` nor blanks part it, and none is too long.
pub(super) fn frame<S: AsRef<[u8]>>(name: &Foreign<S>) -> String {
    /// Ways are long enough without.
    const LONGEST: usize = 512;
    let name: String = name.shown().to_string().chars().take(LONGEST).collect();
    name.replace(';', ":").replace(' ', "_")
}

/// What tells ways apart before they have names: place, thread's name, process, stack.
type Key = (u32, [u8; 16], u32, Vec<u8>);

/// `task;outer;inner WEIGHT`.
///
/// # Errors
/// The record is damaged.
pub(super) fn folded(
    saved: &mut Saved<'_>,
    weight: &Weight,
    to: &mut impl Write,
) -> Result<io::Result<()>, Failure> {
    let mut known: HashMap<Key, String> = HashMap::new();
    let mut ways: HashMap<String, u64> = HashMap::new();
    let mut written = Ok(());
    saved.read(|item| {
        match item {
            Item::Event(event) => {
                let stack = file::stack(&event.probe.args, event.values);
                if let Some((stack, weight)) = stack.zip(weight.of(&event)) {
                    let key = (event.place_number, *event.comm, event.pid, stack.to_vec());
                    let way = known.entry(key).or_insert_with(|| way(&event));
                    match ways.get_mut(way) {
                        Some(all) => *all = all.saturating_add(weight),
                        None => drop(ways.insert(way.clone(), weight)),
                    }
                }
            }
            // Names may change from here on.
            Item::Fact(file::Fact::Forget | file::Fact::Name { .. }) => known.clear(),
            _ => {}
        }
        if known.len() >= MOST_WAYS {
            known.clear();
        }
        if ways.len() >= MOST_WAYS {
            written = lines(to, &mut ways);
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(written.and_then(|()| lines(to, &mut ways)))
}

/// Writes all ways, and forgets them.
fn lines(to: &mut impl Write, ways: &mut HashMap<String, u64>) -> io::Result<()> {
    let mut all: Vec<(String, u64)> = ways.drain().collect();
    all.sort();
    all.iter().try_for_each(|(way, weight)| writeln!(to, "{way} {weight}"))
}

/// From the thread to the function that was called.
fn way(event: &Event<'_>) -> String {
    let comm = String::from_utf8_lossy(saved::comm(event));
    let mut way = frame(&Foreign::new(&*comm));
    let mut add = |name: &str| {
        way.push(';');
        way.push_str(&frame(&Foreign::new(name)));
    };
    let (frames, end) = value::stack(&event.probe.args, event.values, &event.names).unwrap_or_default();
    if end != StackEnd::Outermost {
        add("[…]");
    }
    for function in frames.iter().rev().flat_map(|frame| frame.functions.iter().rev()) {
        add(&function.name);
    }
    // A call that returns has left its function already.
    if event.probe.is_return {
        add(saved::function(event));
    }
    way
}
