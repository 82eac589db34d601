//! The reader of the rings: learns what is planted, merges events by time, keeps what the summary needs.
//!
//! Events of several threads are merged by holding each back until all events that are older must have arrived: a
//! pass over all rings that begins at time T sees everything that was committed before T, and each ring tells the
//! time of the event that is just being written into it. Records that explain events were committed before those
//! events' timestamps, so they are always known by then.

use super::elf::Symbols;
use super::summary::{Row, Summary};
use super::value::Symbolize;
use crate::def::{DefError, Definition, Kind as DefKind};
use crate::wire::{Event, Image, Meta, Point, Record, Region, Values, decode};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// How long it may take another CPU's stores to be seen here; much more than it takes.
const SLACK_NS: u64 = 1_000_000;
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
    /// One event, in order of time.
    fn event(&mut self, event: &Shown<'_>) -> io::Result<()>;
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
    pub(super) comm: &'a str,
    /// The event's name.
    pub(super) name: &'a str,
    /// What asked for it.
    pub(super) definition: &'a Definition,
    /// Where it happened.
    pub(super) point: &'a Point,
    /// How long the call took, for a return.
    pub(super) duration_ns: Option<u64>,
    /// The fetched values.
    pub(super) values: Values<'a>,
    /// Names for addresses.
    pub(super) symbols: &'a dyn Symbolize,
}

/// A planted point and its name.
struct Planted {
    point: Point,
    name: String,
    definition: usize,
}

/// A process image.
#[derive(Default)]
struct Running {
    points: Vec<Option<Planted>>,
    objects: Vec<(u64, u64, u64, String)>,
}

/// An event that waits for its turn.
struct Pending {
    time_ns: u64,
    comm: [u8; 16],
    record: Box<[u8]>,
}

/// The reader.
pub(super) struct Consumer {
    region: Region,
    definitions: Vec<Definition>,
    sink: Box<dyn Sink>,
    started_ns: u64,
    /// No event that is older than this will come any more.
    horizon_ns: u64,
    images: HashMap<Image, Running>,
    pending: Vec<Pending>,
    refused: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    failure: Option<DefError>,
    program: Option<(u32, String)>,
    is_ready: bool,
    sink_failed: Option<io::Error>,
    symbols: Symbols,
    passes: u32,
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
    pub(super) fn new(region: Region, definitions: Vec<Definition>, sink: Box<dyn Sink>) -> Self {
        Self {
            region,
            definitions,
            sink,
            started_ns: now_ns(),
            horizon_ns: 0,
            images: HashMap::new(),
            pending: Vec::new(),
            refused: BTreeMap::new(),
            failure: None,
            program: None,
            is_ready: false,
            sink_failed: None,
            symbols: Symbols::default(),
            passes: 0,
        }
    }

    /// Reads until `done` is set and everything has been read.
    pub(super) fn run(mut self, done: &AtomicBool) -> Verdict {
        loop {
            let is_last = done.load(Ordering::Acquire);
            let read = self.drain();
            self.release(if is_last { u64::MAX } else { self.horizon_ns });
            if let Err(error) = self.sink.flush() {
                self.sink_failed.get_or_insert(error);
            }
            if is_last && read == 0 {
                break;
            }
            self.passes += 1;
            if self.passes.is_multiple_of(CLEAN_EVERY) || self.region.rings_used() > MANY_RINGS {
                self.clean();
            }
            if !is_last {
                self.region.sleep(if read == 0 && self.pending.is_empty() { IDLE_MS } else { BUSY_MS });
            }
        }
        self.finish()
    }

    /// Reads all rings once; returns how many bytes that were. Events before the horizon are all there then.
    fn drain(&mut self) -> usize {
        let mut read = 0;
        let mut horizon_ns = Some(now_ns().saturating_sub(SLACK_NS));
        for index in 0..self.region.rings_used() {
            let ring = self.region.ring(index);
            horizon_ns = horizon_ns.and_then(|before| Some(before.min(ring.horizon_ns()?)));
            if ring.is_empty() && ring.free_if_drained(false) {
                continue;
            }
            let comm = ring.comm();
            // SAFETY: this is the only thread that reads rings, and no other process does.
            read += unsafe {
                ring.consume(|bytes| match decode(bytes) {
                    Some(Record::Event(event)) => {
                        self.pending.push(Pending { time_ns: event.time_ns, comm, record: bytes.into() });
                    }
                    Some(Record::Meta(meta)) => self.learn(meta),
                    None => {}
                })
            };
        }
        self.horizon_ns = horizon_ns.unwrap_or(self.horizon_ns);
        read
    }

    /// Frees the rings of threads that ended without saying so (killed, or in a killed process).
    fn clean(&self) {
        for index in 0..self.region.rings_used() {
            let ring = self.region.ring(index);
            if ring.is_empty() && ring.owner().is_some_and(|owner| owner.is_dead()) {
                ring.free_if_drained(true);
            }
        }
    }

    fn learn(&mut self, meta: Meta) {
        match meta {
            Meta::Started { image, pid, program } => {
                self.images.entry(image).or_default();
                self.program.get_or_insert((pid, program));
            }
            Meta::Object { image, start, end, bias, path } => {
                self.images.entry(image).or_default().objects.push((start, end, bias, path));
            }
            Meta::Point(image, point) => self.learn_point(image, point),
            Meta::Refused { definition, symbol, reason, .. } => {
                if let Some(definition) = self.definitions.get(definition as usize) {
                    let symbols =
                        self.refused.entry(definition.text.clone()).or_default().entry(reason).or_default();
                    if !symbols.contains(&symbol) {
                        symbols.push(symbol);
                    }
                }
            }
            Meta::Failed { definition, span, sentence, .. } => {
                let error = match self.definitions.get(definition as usize) {
                    Some(definition) => {
                        DefError::new(&definition.text, (span.0 as usize, span.1 as usize), sentence)
                    }
                    None => DefError::new("", (0, 0), sentence),
                };
                self.failure.get_or_insert(error);
            }
            Meta::Ready(_) => self.is_ready = true,
        }
    }

    fn learn_point(&mut self, image: Image, point: Point) {
        /// More points than any program has places: an index beyond is nonsense.
        const MOST: usize = 1 << 24;
        let (definition, index) = (point.definition as usize, point.point as usize);
        let Some(of) = self.definitions.get(definition).filter(|_| index < MOST) else { return };
        let name = event_name(of, &point);
        let points = &mut self.images.entry(image).or_default().points;
        if points.len() <= index {
            points.resize_with(index + 1, || None);
        }
        points[index] = Some(Planted { point, name, definition });
    }

    /// Prints the events that are older than `before_ns`.
    fn release(&mut self, before_ns: u64) {
        if self.pending.is_empty() {
            return;
        }
        self.pending.sort_by_key(|event| event.time_ns);
        let ready = self.pending.partition_point(|event| event.time_ns < before_ns);
        for pending in self.pending.drain(..ready) {
            if self.sink_failed.is_some() {
                continue;
            }
            let Some(Record::Event(event)) = decode(&pending.record) else { continue };
            let Some(image) = self.images.get(&event.image) else { continue };
            let Some(Some(planted)) = image.points.get(event.point as usize) else { continue };
            let definition = &self.definitions[planted.definition];
            let resolver = Resolver { image, pid: event.pid, symbols: &self.symbols };
            let shown = show(&event, &pending.comm, planted, definition, self.started_ns, &resolver);
            if let Err(error) = self.sink.event(&shown) {
                self.sink_failed = Some(error);
            }
        }
    }

    fn finish(self) -> Verdict {
        let mut rows: BTreeMap<(usize, String, String), Row> = BTreeMap::new();
        for image in self.images.values() {
            for planted in image.points.iter().flatten() {
                let point = &planted.point;
                let definition = &self.definitions[planted.definition];
                let symbol = place_name(point);
                let key = (planted.definition, point.object.clone(), symbol.clone());
                let row = rows
                    .entry(key)
                    .or_insert_with(|| Row::new(&planted.name, definition, &point.object, &symbol));
                if let Some(counters) = self.region.counters(point.counters) {
                    row.add(counters);
                }
                if let (Some(all), Some(durations)) =
                    (&mut row.durations, self.region.durations(point.durations))
                {
                    all.add(durations);
                }
            }
        }
        let is_planted = |index: usize| rows.keys().any(|(definition, ..)| *definition == index);
        let never = self.definitions.iter().enumerate().filter(|(index, _)| !is_planted(*index));
        let summary = Summary {
            never_planted: never.map(|(_, definition)| definition.text.clone()).collect(),
            rows: rows.into_values().collect(),
            refused: self.refused,
            lost: self.region.lost(),
            ran_ns: now_ns() - self.started_ns,
            ended: String::new(),
            program: self.program.map(|(_, program)| program).unwrap_or_default(),
        };
        Verdict {
            failure: self.failure,
            is_ready: self.is_ready,
            sink_failed: self.sink_failed,
            summary,
            sink: self.sink,
        }
    }
}

/// The name that events of a point go by: the definition's, else the symbol's.
fn event_name(definition: &Definition, point: &Point) -> String {
    if let Some(name) =
        definition.name.as_ref().filter(|_| !matches!(definition.place, crate::def::Place::Glob(_)))
    {
        return name.clone();
    }
    let suffix = if matches!(definition.kind, DefKind::Return { .. }) { "%return" } else { "" };
    place_name(point) + suffix
}

/// `symbol`, `symbol+0x4`, or an address.
fn place_name(point: &Point) -> String {
    match (point.symbol.is_empty(), point.offset) {
        (true, _) => format!("{:#x}", point.addr),
        (false, 0) => point.symbol.clone(),
        (false, offset) => format!("{}+{offset:#x}", point.symbol),
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
        comm: std::str::from_utf8(comm).unwrap_or("?"),
        name: &planted.name,
        definition,
        point: &planted.point,
        duration_ns: definition.is_return().then_some(event.duration_ns),
        values: event.values,
        symbols,
    }
}

/// Names for addresses in one process image.
struct Resolver<'a> {
    image: &'a Running,
    pid: u32,
    symbols: &'a Symbols,
}

impl Symbolize for Resolver<'_> {
    fn symbol(&self, addr: u64) -> Option<String> {
        let known = self.image.objects.iter().find(|(start, end, ..)| (*start..*end).contains(&addr));
        match known {
            Some((_, _, bias, path)) => self.symbols.name(Path::new(path), addr.wrapping_sub(*bias)),
            // Loaded since: the kernel knows where, as long as the process lives.
            None => self.symbols.name_in_process(self.pid, addr),
        }
    }
}
