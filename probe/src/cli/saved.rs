//! A record that is read: which of its events count, how far it could be read, and how far the reading is.

use super::args::Choice;
use super::consumer::Shown;
use super::failure::Failure;
use super::foreign::{self, Foreign};
use super::functions::Function;
use super::status::Status;
use super::value::Symbolize;
use crate::def::Glob;
use crate::file::{Event, Item, Names, Reader, Stop};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;

/// A record.
pub(super) struct Saved<'a> {
    reader: Reader<File>,
    path: &'a Path,
    wanted: Wanted,
    progress: Option<Progress>,
}

/// Which events count.
struct Wanted {
    task: Option<Task>,
    /// The pattern, and for each place that has been seen whether it matches.
    event: Option<(Glob, Vec<Option<bool>>)>,
}

enum Task {
    Number(u32),
    Name(Glob),
}

/// How the reading has ended, where nothing is wrong with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// At its end.
    Whole,
    /// At a place where it was cut, or up to which it has been written.
    Early,
    /// By who has read.
    Left,
}

/// A bar on a terminal.
struct Progress {
    bytes: u64,
    percent: u64,
}

impl<'a> Saved<'a> {
    /// Opens a record and reads its first block, which has all probes.
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub(super) fn open(choice: &'a Choice) -> Result<Self, Failure> {
        let path = choice.file.as_path();
        let file = File::open(path)
            .map_err(|error| Failure::new(format!("`{}` cannot be read: {error}", foreign::path(path))))?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let mut reader = Reader::new(file).map_err(|stop| refused(path, &stop))?;
        reader.skip_until(choice.since.unwrap_or(0));
        match reader.block(&mut |_| ControlFlow::Continue(())) {
            Ok(()) | Err(Stop::Cut { .. }) => {}
            Err(stop) => return Err(refused(path, &stop)),
        }
        let task = choice.task.as_ref().map(|text| match text.parse() {
            Ok(number) => Task::Number(number),
            Err(_) => Task::Name(Glob::new(text)),
        });
        let event = choice.event.as_ref().map(|text| (Glob::new(text), Vec::new()));
        let progress = io::stderr().is_terminal().then_some(Progress { bytes, percent: 0 });
        Ok(Self { reader, path, wanted: Wanted { task, event }, progress })
    }

    /// Shows no progress: what is read is shown as it comes.
    pub(super) fn silent(mut self) -> Self {
        self.progress = None;
        self
    }

    pub(super) fn reader(&self) -> &Reader<File> {
        &self.reader
    }

    /// Whether all events count.
    pub(super) fn is_all(choice: &Choice) -> bool {
        choice.since.is_none() && choice.task.is_none() && choice.event.is_none()
    }

    /// Reads all that follows, and says on standard error where that ends early.
    ///
    /// # Errors
    /// The file is damaged.
    pub(super) fn read(
        &mut self,
        mut each: impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<Ended, Failure> {
        let (wanted, path) = (&mut self.wanted, self.path);
        let mut chosen = |item: Item<'_>| match &item {
            Item::Event(event) if !wanted.holds(event) => ControlFlow::Continue(()),
            _ => each(item),
        };
        let stop = loop {
            if let Some(progress) = &mut self.progress {
                progress.show(self.reader.at());
            }
            if let Err(stop) = self.reader.block(&mut chosen) {
                break stop;
            }
        };
        if let Some(progress) = &mut self.progress {
            progress.clear();
        }
        match stop {
            Stop::End => Ok(Ended::Whole),
            Stop::Left => Ok(Ended::Left),
            Stop::Cut { at } => {
                let lost = match self.reader.lost() {
                    0 => "no event had been lost by then".to_owned(),
                    lost => format!("{lost} events had been lost by then"),
                };
                let path = foreign::path(path);
                eprintln!(
                    "probe: `{path}` has no end: it is still being written, or was cut; {at} bytes could be read, {lost}"
                );
                Ok(Ended::Early)
            }
            stop => Err(refused(path, &stop)),
        }
    }
}

/// Why a record cannot be read.
fn refused(path: &Path, stop: &Stop) -> Failure {
    let path = foreign::path(path);
    let sentence = match stop {
        Stop::Damaged { at: 0, damage } => format!("`{path}` cannot be read: {damage}"),
        Stop::Damaged { at, damage } => format!("`{path}` cannot be read from byte {at} on: {damage}"),
        Stop::Failed(error) => format!("`{path}` cannot be read: {error}"),
        Stop::Cut { .. } | Stop::End | Stop::Left => format!("`{path}` ends before it begins"),
    };
    Failure::new(sentence).with(Status::Failed)
}

impl Wanted {
    fn holds(&mut self, event: &Event<'_>) -> bool {
        let is_task = match &self.task {
            None => true,
            Some(Task::Number(number)) => [event.pid, event.tid].contains(number),
            Some(Task::Name(glob)) => glob.matches(&String::from_utf8_lossy(comm(event))),
        };
        let Some((glob, known)) = &mut self.event else { return is_task };
        let index = event.place_number as usize;
        if known.len() <= index {
            known.resize(index + 1, None);
        }
        is_task && *known[index].get_or_insert_with(|| glob.matches(&event.place.name))
    }
}

impl Progress {
    /// Shows how far the reading is, where that is something new.
    fn show(&mut self, at: u64) {
        // Short files are read before anybody could look.
        const LONG: u64 = 32 << 20;
        let percent = (u128::from(at) * 100 / u128::from(self.bytes.max(1))) as u64;
        if self.bytes < LONG || percent <= self.percent {
            return;
        }
        self.percent = percent;
        let bar = super::style::bar(percent, 100);
        let _ = write!(io::stderr(), "\r{percent:>3} % {bar:<40}");
    }

    fn clear(&mut self) {
        if self.percent > 0 {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// The name of an event's thread.
pub(super) fn comm<'a>(event: &Event<'a>) -> &'a [u8] {
    event.comm.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// The function that an event is of.
pub(super) fn function<'a>(event: &Event<'a>) -> &'a str {
    let name = event.place.name.as_str();
    name.strip_suffix("%return").unwrap_or(name)
}

impl Symbolize for Names<'_> {
    fn symbol(&self, addr: u64) -> Option<Foreign<String>> {
        self.get(addr).map(|name| Foreign::new(name.to_owned()))
    }

    fn functions(&self, place: u64) -> Vec<Function> {
        let unknown = || vec![Function::new(&format!("{place:#x}"), "")];
        self.get(place).map(Function::from_lines).filter(|all| !all.is_empty()).unwrap_or_else(unknown)
    }
}

/// An event as it is printed.
pub(super) fn shown<'a>(event: &'a Event<'a>) -> Shown<'a> {
    Shown {
        time_ns: event.time_ns,
        pid: event.pid,
        tid: event.tid,
        comm: Foreign::new(comm(event)),
        name: Foreign::new(event.place.name.as_str()),
        args: &event.probe.args,
        point: &event.place.point,
        place: event.place_number,
        duration_ns: event.duration_ns,
        values: event.values,
        symbols: &event.names,
    }
}
