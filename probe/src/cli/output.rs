//! Where events and summary are written, and how wide their names are.

use super::args::{Color, Format};
use super::consumer::Sink;
use super::failure::Failure;
use super::query::Query;
use super::style::Style;
use super::{foreign, json, text};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

/// How many keys of a table are shown, if it is not said.
const TOP: usize = 20;

/// How events are to look.
#[derive(Clone, Copy)]
pub(super) struct Looks {
    pub(super) format: Format,
    pub(super) color: Color,
    pub(super) top: Option<usize>,
}

/// Where events go as text or JSON: to a file, to standard output (`-`), or to standard error.
pub(super) fn written(output: Option<&Path>, looks: Looks, widest: usize) -> Result<Box<dyn Sink>, Failure> {
    let to: Box<dyn io::Write + Send> = match output {
        None => Box::new(BufWriter::with_capacity(1 << 16, io::stderr())),
        Some(path) if is_stdout(path) => Box::new(BufWriter::with_capacity(1 << 16, io::stdout())),
        Some(path) => {
            let file = File::create(path).map_err(|error| {
                Failure::new(format!("`{}` cannot be written: {error}", foreign::path(path)))
            })?;
            Box::new(BufWriter::with_capacity(1 << 16, file))
        }
    };
    if looks.format == Format::Json {
        return Ok(Box::new(json::Lines::new(to, looks.top)));
    }
    let style = match output {
        None => Style::new(looks.color, &io::stderr()),
        Some(path) if is_stdout(path) => Style::new(looks.color, &io::stdout()),
        Some(_) if looks.color == Color::Always => Style::new(looks.color, &io::stderr()),
        Some(_) => Style::plain(),
    };
    Ok(Box::new(text::Text::new(to, style, widest, looks.top.unwrap_or(TOP))))
}

/// Whether `-o` means standard output; a file of that name is `./-`.
fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The name of a probe's events that is known beforehand; empty where none is.
pub(super) fn label(Query { definition, .. }: &Query) -> String {
    match (&definition.name, &definition.place) {
        (Some(name), _) => name.clone(),
        (None, crate::def::Place::Symbol { name, .. }) => {
            format!("{name}{}", if definition.is_return() { "%return" } else { "" })
        }
        (None, _) => String::new(),
    }
}

/// The longest event name that is known beforehand.
pub(super) fn widest_name(labels: impl Iterator<Item = String>) -> usize {
    let widths = labels.map(|label| if label.is_empty() { 20 } else { label.chars().count() });
    widths.max().unwrap_or(0)
}
