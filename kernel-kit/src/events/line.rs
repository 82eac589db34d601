//! What a definition means in a kernel, and how it reads again.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;
use probe_core::{CodeAddr, Place};
use probe_definitions::{Definition, Kind, Place as Wanted};

/// The group of events that are given none.
const GROUP: &str = "kprobes";

/// The place of a definition, as a kernel has them.
pub(super) fn place(definition: &Definition) -> Result<Place, String> {
    match &definition.place {
        Wanted::Symbol { name, offset } => {
            let offset = isize::try_from(*offset).map_err(|_| "the offset is too large".to_owned())?;
            if definition.object.is_none() && name.starts_with(|c: char| c.is_ascii_digit()) {
                let at = address(name).ok_or("an address is a number, such as 0xffffffff81000000")?;
                return Ok(Place::from(CodeAddr::new(at)).offset(offset));
            }
            let place = Place::symbol(name).offset(offset);
            Ok(definition.object.iter().fold(place, |place, module| place.in_module(module)))
        }
        Wanted::Glob(_) => Err("an event has one place, and a pattern may have many".to_owned()),
        Wanted::FileOffset(_) => Err("a module's file has no offsets here".to_owned()),
    }
}

fn address(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The group and the name of an event: as given, or made of its place as in Linux.
pub(super) fn names(definition: &Definition) -> (String, String) {
    let given = definition.name.as_deref();
    match given.map(|name| name.split_once('/').unwrap_or((GROUP, name))) {
        Some((group, name)) => (group.to_owned(), name.to_owned()),
        None => {
            let letter = if definition.is_return() { 'r' } else { 'p' };
            let name = match &definition.place {
                Wanted::Symbol { name, .. } if name.starts_with("0x") => format!("{letter}_{name}"),
                Wanted::Symbol { name, offset } => format!("{letter}_{name}_{offset}"),
                _ => letter.to_string(),
            };
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            (GROUP.to_owned(), name.chars().map(plain).collect())
        }
    }
}

/// The definition with the names that were left out.
pub(super) fn text(definition: &Definition, group: &str, name: &str) -> String {
    let letter = match definition.kind {
        Kind::Hit => "p".to_owned(),
        Kind::Return { max_active } => format!("r{}", max_active.map_or(String::new(), |n| n.to_string())),
    };
    let part = |(start, end): (usize, usize)| definition.text.get(start..end).unwrap_or_default();
    let place = part(definition.place_span);
    let place = place.strip_suffix("%return").unwrap_or(place);
    let mut text = format!("{letter}:{group}/{name} {place}");
    for argument in &definition.args {
        let typed = part(argument.span);
        let own = format!("{}=", argument.name);
        let name = if typed.starts_with(&own) { "" } else { &own };
        let _ = write!(text, " {name}{typed}");
    }
    text
}

/// Where the arguments of a definition stand in it.
pub(super) fn span_of_arguments(definition: &Definition) -> (usize, usize) {
    let first = definition.args.first().map_or(0, |argument| argument.span.0);
    (first, definition.args.last().map_or(definition.text.len(), |argument| argument.span.1))
}
