//! A record that is read: which of its events count, how far it could be read, and how far the reading is.

use super::args::Choice;
use super::consumer::Shown;
use super::failure::Failure;
use super::foreign::{self, Foreign};
use super::functions::Function;
use super::status::Status;
use super::value::Symbolize;
use crate::def::Glob;
use crate::file::{Event, Fact, Item, Names, Reader, Stop};
use std::fs::File;
use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;

/// A record.
pub(super) struct Saved<'a> {
    reader: Reader<File>,
    path: &'a Path,
    wanted: Wanted,
    progress: Option<Progress>,
    /// The same file again, where it can be read twice.
    again: Option<File>,
    since_ns: u64,
    /// How far the first reading came, in the second one.
    read_before: Option<u64>,
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
    /// How many times it is read.
    times: u64,
    /// What had been read before.
    before: u64,
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
        let metadata = file.metadata().ok();
        let bytes = metadata.as_ref().map_or(0, |metadata| metadata.len());
        let again = metadata.filter(|metadata| metadata.is_file()).and_then(|_| file.try_clone().ok());
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
        let progress =
            io::stderr().is_terminal().then_some(Progress { bytes, times: 1, before: 0, percent: 0 });
        let since_ns = choice.since.unwrap_or(0);
        let wanted = Wanted { task, event };
        Ok(Self { reader, path, wanted, progress, again, since_ns, read_before: None })
    }

    /// Whether it can be read twice, as it will be.
    pub(super) fn is_for_two(&mut self) -> bool {
        if let Some(progress) = &mut self.progress {
            progress.times = 1 + u64::from(self.again.is_some());
        }
        self.again.is_some()
    }

    /// Begins anew, and ends at the same place, if more has been written meanwhile.
    ///
    /// # Errors
    /// It cannot be read again.
    pub(super) fn rewind(&mut self) -> Result<(), Failure> {
        let read = self.reader.at();
        let path = self.path;
        let unread = |error| Failure::new(format!("`{}` cannot be read again: {error}", foreign::path(path)));
        let Some(mut file) = self.again.take() else { return Err(unread(io::ErrorKind::NotSeekable.into())) };
        file.seek(SeekFrom::Start(0)).map_err(unread)?;
        self.reader = Reader::new(file).map_err(|stop| refused(path, &stop))?;
        self.reader.skip_until(self.since_ns);
        self.read_before = Some(read);
        if let Some(progress) = &mut self.progress {
            progress.before = read;
        }
        Ok(())
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
            if self.read_before.is_some_and(|read| self.reader.at() >= read) {
                break Stop::End;
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
        let (at, all) =
            (u128::from(self.before + at), u128::from(self.bytes.max(1)) * u128::from(self.times));
        let percent = (at * 100 / all) as u64;
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

/// Where a record comes from.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// When the recording began, in nanoseconds since 1970.
    pub(super) began_ns: u64,
    /// The first program's file.
    pub(super) program: String,
    /// When the first event that counts began, and when the last one ended.
    pub(super) times: Option<(u64, u64)>,
    /// Whether the record has its end.
    pub(super) is_whole: bool,
}

/// Where a record comes from.
///
/// # Errors
/// It cannot be read.
pub(super) fn origin(choice: &Choice) -> Result<Origin, Failure> {
    let mut saved = Saved::open(choice)?;
    let mut origin = Origin { began_ns: saved.reader().head().began_ns, ..Origin::default() };
    let ended = saved.read(|item| {
        match item {
            Item::Fact(Fact::Started { program, .. }) if origin.program.is_empty() => {
                origin.program.clone_from(program);
            }
            Item::Event(event) => {
                let start_ns = event.time_ns.saturating_sub(event.span_ns().unwrap_or(0));
                let (first_ns, last_ns) = origin.times.unwrap_or((start_ns, event.time_ns));
                origin.times = Some((first_ns.min(start_ns), last_ns.max(event.time_ns)));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    origin.is_whole = ended == Ended::Whole;
    Ok(origin)
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
        left_ns: event.left_ns,
        values: event.values,
        symbols: &event.names,
    }
}
