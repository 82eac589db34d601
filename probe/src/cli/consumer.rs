//! The reader of the rings: learns what is planted, merges events by time, keeps what the summary needs.
//!
//! Events of several threads are merged by holding each back until all events that are older must have
//! arrived: a pass over all rings that begins at time T sees everything that was committed before T, and each
//! ring tells the time of the event that is just being written into it. Records that explain events were
//! committed before those events' timestamps, so they are always known by then.

use super::answers::{self, Answer};
use super::foreign::Foreign;
use super::functions::Function;
use super::learned::{Fact, Learned, Object, Planted, Running};
use super::losses::Losses;
use super::open::FileId;
use super::pending::{self, Pending};
use super::query::Query;
use super::summary::Summary;
use super::symbols::Symbols;
use super::value::Symbolize;
use crate::def::{Argument, DefError, Definition};
use crate::wire::{Event, LONGEST_RECORD, Point, Reader, Record, Region, Site, Values, decode};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest time that another CPU's stores may take to be seen here; much more than they do.
const SLACK_NS: u64 = 1_000_000;
/// How far ahead of this clock an event's time may lie: it was written while the rings were read.
const AHEAD_NS: u64 = 1_000_000_000;
/// How long the reader sleeps when there was nothing to read; a ring that fills up wakes it earlier.
const IDLE_MS: u32 = 20;
/// How long it sleeps when there was something: time for more to gather.
const BUSY_MS: u32 = 4;
/// After how many passes rings of dead threads are looked for; at every pass when many have been used.
const CLEAN_EVERY: u32 = 64;
/// How many are many.
const MANY_RINGS: usize = 64;

/// Where events and the summary go.
pub(super) trait Sink: Send {
    /// A fact that events to come refer to, after those that were told before.
    fn fact(&mut self, _fact: Fact<'_>) -> io::Result<()> {
        Ok(())
    }
    /// How many events have been lost so far.
    fn lost(&mut self, _events: u64) {}
    /// One event, in order of time.
    fn event(&mut self, event: &Shown<'_>) -> io::Result<()>;
    /// What has been counted since the last time.
    fn answers(&mut self, time_ns: u64, per: Duration, answers: &[Answer]) -> io::Result<()>;
    /// The end.
    fn summary(&mut self, summary: &Summary) -> io::Result<()>;
    /// Hands over what is buffered.
    fn flush(&mut self) -> io::Result<()>;
}

/// An event with everything that is known about it.
pub(super) struct Shown<'a> {
    /// Since the command started, in nanoseconds.
    pub(super) time_ns: u64,
    /// The process.
    pub(super) pid: u32,
    /// The thread.
    pub(super) tid: u32,
    /// The thread's name.
    pub(super) comm: Foreign<&'a [u8]>,
    /// The event's name.
    pub(super) name: Foreign<&'a str>,
    /// What was to be fetched.
    pub(super) args: &'a [Argument],
    /// Where it happened.
    pub(super) point: &'a Point,
    /// The number of that place.
    pub(super) place: u32,
    /// How long the call took, for a return.
    pub(super) duration_ns: Option<u64>,
    /// How long before the event the call began, for one that was left without a return.
    pub(super) left_ns: Option<u64>,
    /// The fetched values.
    pub(super) values: Values<'a>,
    /// Names for addresses.
    pub(super) symbols: &'a dyn Symbolize,
}

/// The reader.
pub(super) struct Consumer {
    reader: Reader,
    learned: Learned,
    sink: Box<dyn Sink>,
    started_ns: u64,
    /// No event that is older than this will come any more.
    horizon_ns: u64,
    pending: Pending,
    /// The ring that is read first in the next pass.
    first: usize,
    /// Records that no agent writes, and events of points that nobody knows.
    garbled: u64,
    losses: Losses,
    /// Events that found no room in a ring.
    dropped: u64,
    sink_failed: Option<io::Error>,
    symbols: Symbols,
    passes: u32,
    /// How often what was counted is told, if it is.
    every: Option<Every>,
}

/// What is told again and again.
struct Every {
    interval_ns: u64,
    next_ns: u64,
    last_ns: u64,
    /// What had been counted at the last time.
    before: Vec<Answer>,
}

/// What one pass over all rings has found.
#[derive(Clone, Copy, Default)]
struct Pass {
    /// How many bytes were read.
    bytes: usize,
    /// Whether data that was there at the beginning of the pass is still unread.
    is_partial: bool,
}

/// What the reader knows when everything has been read.
pub(super) struct Verdict {
    /// Why the agent ended the program before its `main`.
    pub(super) failure: Option<DefError>,
    /// Whether the agent planted everything and let `main` run.
    pub(super) is_ready: bool,
    /// Why events could not be written.
    pub(super) sink_failed: Option<io::Error>,
    /// Everything else; the caller adds how the program ended.
    pub(super) summary: Summary,
    /// Where to write the summary.
    pub(super) sink: Box<dyn Sink>,
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of the agents.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Consumer {
    pub(super) fn new(
        region: Region,
        region_id: FileId,
        queries: Vec<Query>,
        sink: Box<dyn Sink>,
        every: Option<Duration>,
    ) -> Self {
        let every = every.map(|every| {
            let interval_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
            let last_ns = now_ns();
            let next_ns = last_ns.saturating_add(interval_ns);
            Every { interval_ns, next_ns, last_ns, before: Vec::new() }
        });
        Self {
            every,
            reader: Reader::new(region),
            learned: Learned::new(queries),
            sink,
            started_ns: now_ns(),
            horizon_ns: 0,
            pending: Pending::default(),
            first: 0,
            garbled: 0,
            losses: Losses::default(),
            dropped: 0,
            sink_failed: None,
            symbols: Symbols::new(region_id),
            passes: 0,
        }
    }

    /// So many agents have to plant everything, for the trace to begin.
    #[cfg(has_mapped)]
    pub(super) fn awaiting(mut self, agents: usize) -> Self {
        self.learned.awaited = agents;
        self
    }

    /// Reads until `done` is set and everything that was there by then has been read.
    pub(super) fn run(mut self, done: &AtomicBool) -> Verdict {
        let mut left = None;
        loop {
            let is_last = done.load(Ordering::Acquire);
            let pass = self.drain();
            self.release(self.horizon_ns);
            self.tell();
            self.sink.lost(self.dropped.saturating_add(self.reader.lost()));
            if let Err(error) = self.sink.flush() {
                self.sink_failed.get_or_insert(error);
            }
            let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
            if !is_last && self.sink_failed.as_ref().is_some_and(is_closed) {
                super::launch::nobody_reads();
            }
            if is_last {
                // Children that go on may write for ever; what was there before fits into the rings.
                let left = left.get_or_insert_with(|| self.reader.capacity());
                *left = left.saturating_sub(pass.bytes);
                if !pass.is_partial || *left == 0 {
                    break;
                }
                continue;
            }
            self.passes = self.passes.wrapping_add(1);
            if self.passes.is_multiple_of(CLEAN_EVERY) || self.reader.rings_used() > MANY_RINGS {
                self.clean();
            }
            if !pass.is_partial {
                let is_idle = pass.bytes == 0 && self.pending.is_empty();
                self.reader.sleep(if is_idle { IDLE_MS } else { BUSY_MS });
            }
        }
        self.release(u64::MAX);
        self.finish()
    }

    /// Tells what has been counted since the last time, when it is time.
    fn tell(&mut self) {
        let now_ns = now_ns();
        let Some(every) = self.every.as_mut().filter(|every| now_ns >= every.next_ns) else { return };
        let answers =
            answers::read(&self.learned.queries, &self.reader, &Callers(&self.learned, &self.symbols));
        let since = answers.iter().enumerate().map(|(index, now)| match every.before.get(index) {
            Some(before) => now.since(before),
            None => now.clone(),
        });
        let since: Vec<Answer> = since.collect();
        every.before = answers;
        let per = Duration::from_nanos(now_ns.saturating_sub(every.last_ns));
        every.last_ns = now_ns;
        every.next_ns = every.next_ns.saturating_add(every.interval_ns).max(now_ns);
        if self.sink_failed.is_none() {
            self.sink_failed = self.sink.answers(now_ns.saturating_sub(self.started_ns), per, &since).err();
        }
    }

    /// Reads all rings once, each up to its share. Events before the horizon are all there then.
    fn drain(&mut self) -> Pass {
        let now_ns = now_ns();
        let mut pass = Pass::default();
        let mut horizon_ns = Some(now_ns.saturating_sub(SLACK_NS));
        let rings = self.reader.rings_used();
        let share = (pending::MOST_BYTES / 2 / rings.max(1)).max(64 << 10);
        let first = self.first;
        for index in (0..rings).map(|step| (first + step) % rings) {
            if self.pending.is_too_much() {
                // What the others hold may be older than all of this.
                (self.first, horizon_ns, pass.is_partial) = (index, None, true);
                break;
            }
            let before_ns = self.reader.horizon_ns(index, now_ns);
            self.count_losses(index);
            if self.reader.free_if_drained(index, false) {
                continue;
            }
            let (bytes, unread_ns) = self.drain_ring(index, share, now_ns);
            pass.bytes += bytes;
            pass.is_partial |= unread_ns.is_some();
            let before_ns = before_ns.map(|before_ns| before_ns.min(unread_ns.unwrap_or(u64::MAX)));
            horizon_ns = horizon_ns.zip(before_ns).map(|(a, b)| a.min(b));
        }
        self.horizon_ns = horizon_ns.unwrap_or(self.horizon_ns);
        pass
    }

    /// Counts what the owner of a ring has lost since the last time.
    fn count_losses(&mut self, index: usize) {
        let events = self.reader.new_drops(index);
        self.dropped = self.dropped.saturating_add(events);
        if events != 0
            && let Some(owner) = self.reader.owner(index)
        {
            self.losses.add(owner, events);
        }
    }

    /// Reads one ring; returns how many bytes that were, and before which time nothing is left there, if
    /// anything is.
    fn drain_ring(&mut self, index: usize, share: usize, now_ns: u64) -> (usize, Option<u64>) {
        const { assert!(LONGEST_RECORD <= pending::MOST_BYTES) };
        let comm = self.reader.comm(index);
        let (pending, learned, garbled) = (&mut self.pending, &mut self.learned, &mut self.garbled);
        let (sink, sink_failed) = (&mut self.sink, &mut self.sink_failed);
        let mut last_ns = self.horizon_ns;
        let progress = self.reader.read(index, share, |bytes| match decode(bytes) {
            Some(Record::Event(event)) => {
                let is_possible = event.time_ns <= now_ns.saturating_add(AHEAD_NS);
                last_ns = if is_possible { event.time_ns } else { now_ns };
                pending.push(last_ns, comm, bytes);
            }
            Some(Record::Meta(meta)) => {
                let told = learned.learn(meta).and_then(|fact| sink.fact(fact).err());
                if sink_failed.is_none() {
                    *sink_failed = told;
                }
            }
            None => *garbled = garbled.saturating_add(1),
        });
        (progress.bytes, progress.is_partial.then_some(last_ns))
    }

    /// Frees the rings of threads that ended without saying so (killed, or in a killed process).
    fn clean(&self) {
        for index in 0..self.reader.rings_used() {
            if self.reader.owner(index).is_some_and(|(owner, _)| owner.is_dead()) {
                self.reader.free_if_drained(index, true);
            }
        }
    }

    /// Prints the events that are not younger than `until_ns`, and more where too many wait.
    fn release(&mut self, until_ns: u64) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.release(until_ns, |comm, record| self.print(comm, record));
        while pending.is_too_much() {
            pending.release_half(|comm, record| self.print(comm, record));
        }
        self.pending = pending;
    }

    fn print(&mut self, comm: &[u8; 16], record: &[u8]) {
        let Some(Record::Event(event)) = decode(record) else { return };
        let Some((image, planted)) = self.learned.point(event.image, event.point) else {
            self.garbled = self.garbled.saturating_add(1);
            return;
        };
        if self.sink_failed.is_some() {
            return;
        }
        let definition = &self.learned.queries[planted.definition].definition;
        let resolver = Resolver { image, pid: event.pid, symbols: &self.symbols };
        let shown = show(&event, comm, planted, definition, self.started_ns, &resolver);
        if let Err(error) = self.sink.event(&shown) {
            self.sink_failed = Some(error);
        }
    }

    fn finish(mut self) -> Verdict {
        let (rows, never_planted) = self.learned.rows(&self.reader);
        let garbled =
            [self.learned.ignored, self.reader.spoilt()].into_iter().fold(self.garbled, u64::saturating_add);
        let summary = Summary {
            never_planted,
            answers: answers::read(
                &self.learned.queries,
                &self.reader,
                &Callers(&self.learned, &self.symbols),
            ),
            rows,
            refused: self.learned.take_refused(),
            not_followed: self.learned.take_not_followed(),
            lost: self.reader.lost(),
            lost_by: self.losses.sorted(),
            garbled,
            ran_ns: now_ns().saturating_sub(self.started_ns),
            ended: String::new(),
            program: Foreign::new(self.learned.program.unwrap_or_default()),
        };
        Verdict {
            failure: self.learned.failure,
            is_ready: self.learned.awaited == 0,
            sink_failed: self.sink_failed,
            summary,
            sink: self.sink,
        }
    }
}

fn show<'a>(
    event: &Event<'a>,
    comm: &'a [u8; 16],
    planted: &'a Planted,
    definition: &'a Definition,
    started_ns: u64,
    symbols: &'a dyn Symbolize,
) -> Shown<'a> {
    let comm = comm.split(|&byte| byte == 0).next().unwrap_or_default();
    Shown {
        time_ns: event.time_ns.saturating_sub(started_ns),
        pid: event.pid,
        tid: event.tid,
        comm: Foreign::new(comm),
        name: Foreign::new(&planted.name),
        args: &definition.args,
        point: &planted.point,
        place: planted.number,
        duration_ns: (definition.is_timed() && !event.is_left).then_some(event.duration_ns),
        left_ns: event.is_left.then_some(event.duration_ns),
        values: event.values,
        symbols,
    }
}

/// The functions at the place of a frame; `None` where no object is. Of those that were loaded there one
/// after the other, the last.
fn functions<'a>(
    mut objects: impl DoubleEndedIterator<Item = &'a Object>,
    symbols: &Symbols,
    place: u64,
) -> Option<Vec<Function>> {
    let object = objects.rfind(|object| (object.start..object.end).contains(&place))?;
    let at = place.wrapping_sub(object.bias);
    let mut all = symbols.functions(&object.file, at);
    if all.is_empty() {
        let file = object.file.path.file_name().unwrap_or(object.file.path.as_os_str());
        all.push(Function::new(&file.to_string_lossy(), &format!("+{at:#x}")));
    }
    Some(all)
}

/// Names for callers.
struct Callers<'a>(&'a Learned, &'a Symbols);

impl answers::Functions for Callers<'_> {
    fn functions(&self, image: u32, place: u64) -> Vec<Function> {
        let unknown = || vec![Function::new(&format!("{place:#x}"), "")];
        functions(self.0.objects(image), self.1, place).unwrap_or_else(unknown)
    }

    fn function(&self, site: Site) -> Vec<u8> {
        // The call is before the address: the next function may begin there.
        let addr = site.addr.wrapping_sub(1);
        let Some(object) =
            self.0.objects(site.image).find(|object| (object.start..object.end).contains(&addr))
        else {
            return format!("{:#x}", site.addr).into_bytes();
        };
        match self.1.function(&object.file, addr.wrapping_sub(object.bias)) {
            Some(name) => name.raw().clone().into_bytes(),
            None => {
                let file = object.file.path.file_name().unwrap_or(object.file.path.as_os_str());
                let at = format!("+{:#x}", site.addr.wrapping_sub(object.bias));
                [file.as_bytes(), at.as_bytes()].concat()
            }
        }
    }
}

/// Names for addresses in one process image.
struct Resolver<'a> {
    image: &'a Running,
    pid: u32,
    symbols: &'a Symbols,
}

impl Symbolize for Resolver<'_> {
    fn symbol(&self, addr: u64) -> Option<Foreign<String>> {
        let known = self.image.objects.iter().find(|object| (object.start..object.end).contains(&addr));
        match known {
            Some(object) => self.symbols.name(&object.file, addr.wrapping_sub(object.bias)),
            // Loaded since: the kernel knows where, as long as the process lives.
            None => self.symbols.name_in_process(self.pid, addr),
        }
    }

    fn functions(&self, place: u64) -> Vec<Function> {
        let objects = self.image.objects.iter();
        functions(objects, self.symbols, place).unwrap_or_else(|| match self.symbol(place) {
            Some(name) => vec![Function::new(name.raw(), "")],
            None => vec![Function::new(&format!("{place:#x}"), "")],
        })
    }
}
