//! `probe list`: what can be probed.

use super::args::List;
use super::elf::{Libraries, ObjectFile, demangled};
use super::failure::{Failure, did_you_mean};
use super::foreign::{self, Foreign};
use super::program;
use super::style::{Role, Style};
use crate::def::{Glob, Named, names, near_matches, object_named};
use object::{Object, ObjectSymbol};
use probe_elf_symbols::index::Kind;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::PathBuf;

/// One line of the list.
struct Line {
    place: Foreign<String>,
    len_bytes: usize,
    note: &'static str,
}

/// Prints the functions of a program and its libraries.
///
/// # Errors
/// There is no such program, or nothing that matches.
pub(super) fn run(args: &List) -> Result<(), Failure> {
    let libraries = Libraries::new();
    let (loaded, lines, with_objects) = match (found(&libraries, &args.program), &args.glob) {
        (Ok(path), glob) => {
            let loaded = libraries.closure(&path)?;
            let lines = glob.as_ref().map_or_else(|| Ok(own(&loaded)), |glob| matching(&loaded, glob));
            (loaded, lines?, glob.is_none())
        }
        (Err(failure), Some(_)) => return Err(failure),
        (Err(failure), None) => {
            let (file, lines) = of_one_object(&libraries, &args.program.to_string_lossy(), failure)?;
            (vec![file], lines, false)
        }
    };
    let style = Style::new(args.color, &io::stdout());
    match print(&loaded, &lines, with_objects, style) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(error)),
        _ => Ok(()),
    }
}

/// A program, or a shared object, which needs no right to be executed.
fn found(libraries: &Libraries, name: &OsStr) -> Result<PathBuf, Failure> {
    program::find(name).or_else(|failure| libraries.object(&name.to_string_lossy()).map_err(|_| failure))
}

/// `OBJECT:PATTERN` in one word, as definitions name places; `failure` where it is none.
fn of_one_object(
    libraries: &Libraries,
    word: &str,
    failure: Failure,
) -> Result<(ObjectFile, Vec<Line>), Failure> {
    let (Some(object), pattern) = split_object(word) else { return Err(failure) };
    let file = ObjectFile::open(&found(libraries, OsStr::new(object))?)?;
    let lines = matching(std::slice::from_ref(&file), pattern)?;
    Ok((file, lines))
}

/// The functions whose name matches `[OBJECT:]PATTERN`, in all objects.
fn matching(loaded: &[ObjectFile], glob: &str) -> Result<Vec<Line>, Failure> {
    let (object, pattern) = split_object(glob);
    let chosen = chosen(loaded, object)?;
    let pattern = Glob::new(pattern);
    let mut lines: Vec<Line> = Vec::new();
    for file in &chosen {
        let first = lines.len();
        for entry in file.code_symbols() {
            let name = file.index.name(entry);
            if is_meant(&pattern, name) {
                lines.push(Line {
                    place: place(file, &demangled(name)),
                    len_bytes: entry.len_bytes,
                    note: note(entry.kind),
                });
            }
        }
        lines[first..].sort_by(|a, b| a.place.cmp(&b.place));
    }
    // Several versions of one name.
    lines.dedup_by(|b, a| a.place == b.place);
    if lines.is_empty() {
        let names = chosen.iter().flat_map(|file| file.code_symbols().map(|entry| file.index.name(entry)));
        let near = near_matches(pattern.as_str(), names, 3);
        return Err(Failure::new(format!("no function matches `{glob}`{}", did_you_mean(&near))));
    }
    Ok(lines)
}

/// Whether `probe trace` finds a function by this pattern or name.
fn is_meant(pattern: &Glob, symbol: &str) -> bool {
    names::matches(pattern, symbol) || names::has_base_name(symbol, pattern.as_str())
}

/// Splits at the first `:` that is not part of a `::`, as definitions are.
fn split_object(glob: &str) -> (Option<&str>, &str) {
    match glob.split_once(':') {
        Some((object, pattern)) if !pattern.starts_with(':') => (Some(object), pattern),
        _ => (None, glob),
    }
}

/// The objects to look into: all, those that match a pattern, or the one that a definition would mean.
fn chosen<'a>(loaded: &'a [ObjectFile], object: Option<&str>) -> Result<Vec<&'a ObjectFile>, Failure> {
    let Some(object) = object else { return Ok(loaded.iter().collect()) };
    let chosen: Vec<&ObjectFile> = match object_named(loaded, object) {
        Named::One(file) => vec![file],
        Named::Several(all) | Named::All(all) => all,
        Named::Nothing => Vec::new(),
    };
    if chosen.is_empty() {
        let names: Vec<&str> = loaded.iter().map(|file| file.name.raw().as_str()).collect();
        return Err(Failure::new(format!(
            "no object that {} loads is called `{object}`; it loads {}",
            names[0],
            names.join(", ")
        )));
    }
    Ok(chosen)
}

/// The program's own functions, then those that it imports.
fn own(loaded: &[ObjectFile]) -> Vec<Line> {
    let program = &loaded[0];
    let mut lines: Vec<Line> = program
        .functions()
        .map(|entry| Line {
            place: place(program, &demangled(program.index.name(entry))),
            len_bytes: entry.len_bytes,
            note: note(entry.kind),
        })
        .collect();
    for name in imports(program) {
        for file in &loaded[1..] {
            let mut found = None;
            file.index.find(&name, &mut |entry| {
                if entry.kind != Kind::Data {
                    found = Some((entry.len_bytes, note(entry.kind)));
                }
            });
            if let Some((len_bytes, note)) = found {
                lines.push(Line { place: place(file, &demangled(&name)), len_bytes, note });
                break;
            }
        }
    }
    lines
}

/// The names of the functions that a program takes from its libraries.
fn imports(program: &ObjectFile) -> Vec<String> {
    let Ok(data) = super::open::read(&program.path) else { return Vec::new() };
    let Ok(file) = object::File::parse(&*data) else { return Vec::new() };
    let mut names: Vec<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .filter(|name| !name.is_empty())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn place(file: &ObjectFile, symbol: &Foreign<String>) -> Foreign<String> {
    Foreign::new(names::place(file.name.raw(), symbol.raw()))
}

fn note(kind: Kind) -> &'static str {
    match kind {
        Kind::Function | Kind::Data => "",
        Kind::Indirect => "chosen at run time",
        Kind::Label => "label",
    }
}

fn print(loaded: &[ObjectFile], lines: &[Line], with_objects: bool, style: Style) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let width = lines
        .iter()
        .map(|line| line.place.shown().to_string().chars().count())
        .max()
        .unwrap_or(0)
        .clamp(20, 60);
    writeln!(out, "{}", style.paint(Role::Head, format!("{:<width$}  {:>7}", "PLACE", "BYTES")))?;
    for line in lines {
        let place = style.paint(Role::Name, format!("{:<width$}", line.place.shown()));
        let text = format!("{place}  {:>7}  {}", line.len_bytes, style.paint(Role::Dim, line.note));
        writeln!(out, "{}", text.trim_end())?;
    }
    if with_objects {
        writeln!(out, "\n{}", style.paint(Role::Head, format!("{:<width$}  {:>9}", "OBJECT", "FUNCTIONS")))?;
        for file in loaded {
            let name = style.paint(Role::Name, format!("{:<width$}", file.name.shown()));
            writeln!(
                out,
                "{name}  {:>9}  {}",
                file.functions().count(),
                style.paint(Role::Dim, foreign::path(&file.path))
            )?;
        }
    }
    out.flush()
}
