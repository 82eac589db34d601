//! The functions at a place of a file: by its debugging information also those that were inlined there, else
//! by its symbols.

use super::elf::demangled;
use super::foreign::Foreign;
use addr2line::Context;
use gimli::{Dwarf, EndianReader, RunTimeEndian, SectionId};
use object::{Object, ObjectSection};
use std::rc::Rc;

/// How many functions may be inlined in each other.
const DEEPEST: usize = 64;

/// A function that a frame is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Function {
    pub(super) name: String,
    /// Where in it: file and line, or how far from its symbol; empty where that is not known.
    pub(super) at: String,
}

/// A name as a part of a line: who has made it may have put anything in.
fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "?")
}

impl Function {
    pub(super) fn new(name: &str, at: &str) -> Self {
        Self { name: plain(name), at: plain(at) }
    }

    /// Without a tabulator there is nothing behind the name.
    fn from_line(line: &str) -> Self {
        let (name, at) = line.split_once('\t').unwrap_or((line, ""));
        Self::new(name, at)
    }

    /// Those of a frame, each in the one behind it, as a record has them.
    pub(super) fn to_lines(all: &[Self]) -> String {
        let line = |function: &Self| match function.at.as_str() {
            "" => function.name.clone(),
            at => format!("{}\t{at}", function.name),
        };
        all.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Those of a frame in a record.
    pub(super) fn from_lines(lines: &str) -> Vec<Self> {
        lines.lines().map(Self::from_line).collect()
    }

    /// `name`, `name+0x1f`, `name (file.c:12)`.
    pub(super) fn shown(&self) -> String {
        let name = Foreign::new(self.name.as_str());
        let at = Foreign::new(self.at.as_str());
        match self.at.as_bytes() {
            [] => name.shown().to_string(),
            [b'+', ..] => format!("{}{}", name.shown(), at.shown()),
            _ => format!("{} ({})", name.shown(), at.shown()),
        }
    }
}

type Bytes = EndianReader<RunTimeEndian, Rc<[u8]>>;

/// Debugging information.
pub(super) struct Lines(Context<Bytes>);

impl Lines {
    /// That of a file, if it has any.
    pub(super) fn of(file: &object::File<'_>) -> Option<Self> {
        file.section_by_name(".debug_info")?;
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let section = |id: SectionId| -> Result<Bytes, gimli::Error> {
            let data = file.section_by_name(id.name()).and_then(|section| section.uncompressed_data().ok());
            Ok(Bytes::new(data.unwrap_or_default().as_ref().into(), endian))
        };
        Context::from_dwarf(Dwarf::load(section).ok()?).ok().map(Self)
    }

    /// The functions at an address in the file's own numbering, each in the one behind it.
    pub(super) fn functions(&self, addr: u64) -> Vec<Function> {
        let Ok(mut frames) = self.0.find_frames(addr).skip_all_loads() else { return Vec::new() };
        let mut all = Vec::new();
        while let Ok(Some(frame)) = frames.next()
            && all.len() < DEEPEST
        {
            // Outside of all functions there is a line without one.
            let Some(function) = frame.function else { continue };
            let Ok(name) = function.raw_name() else { continue };
            let at = frame.location.and_then(|location| {
                let file = location.file?.rsplit('/').next()?;
                Some(format!("{file}:{}", location.line?))
            });
            all.push(Function::new(demangled(&name).raw(), &at.unwrap_or_default()));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_survive_a_record_whatever_they_are_called() {
        let all = [
            Function::new("operator+(A, B)", "a.cc:12"),
            Function::new("f", "+0x1f"),
            Function::new("nothing", ""),
            Function::new("new\nline\ttab", "x\ty"),
        ];
        assert_eq!(Function::from_lines(&Function::to_lines(&all)), all);
        let shown: Vec<String> = all.iter().map(Function::shown).collect();
        assert_eq!(shown, ["operator+(A, B) (a.cc:12)", "f+0x1f", "nothing", "new?line?tab (x?y)"]);
    }
}
